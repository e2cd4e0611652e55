"""What a run refuses or gives up on."""


class TrainingError(ValueError):
    """Settings that do not fit, a folder that holds another run, or numbers that broke."""
