"""What can go wrong on the policy's side; every message states the value, the rule and the fix."""


class AgentError(ValueError):
    """Base of the errors raised by `stepcredit.agents`."""


class ModelError(AgentError):
    """A model setting that does not exist."""


class TemplateError(AgentError):
    """A chat template that re-renders history, so that no turn can be appended to it."""


class EncodingError(AgentError):
    """A text that the tokenizer cannot represent."""


class SpanError(AgentError):
    """Step rewards whose spans do not fit the action."""


class RolloutError(AgentError):
    """Too many episodes of a rollout failed."""


class TrajectoryFileError(AgentError):
    """A trajectory file that this version cannot read."""
