"""What one run is: environment, model, algorithm, rollout and training, as read from YAML."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from stepcredit.agents.sizes import SIZES


class Settings(BaseModel):
    """A section whose keys are all known; anything else is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OpenSettings(BaseModel):
    """A section that passes its further keys on to an environment or a preset, which check them."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    @property
    def further(self) -> dict[str, Any]:
        """The keys that are not fields of this section."""
        return dict(self.model_extra or {})


class EnvSettings(OpenSettings):
    """Which environment, under which reward set-up; further keys are the environment's own."""

    id: str
    reward: str = "outcome"
    """outcome | dense@end | dense."""


class SFTSettings(Settings):
    """The warm start: supervised steps on the environment's own demonstrations."""

    steps: int = Field(400, ge=0)
    batch_turns: int = Field(64, ge=1)
    """Demonstrated turns of one step, so that long and short episodes teach alike."""
    learning_rate: float = Field(3e-3, gt=0)
    """Peak of a cosine that ends at 0."""
    demonstrations: int = Field(8192, ge=1)
    """Different turns that are demonstrated; they are used again once they run out."""
    env: dict[str, Any] = {}
    """Environment settings of the demonstrations where they differ from the run's: runs that differ
    in these alone share a warm start."""


class ModelSettings(Settings):
    """The policy network."""

    name: str = "tiny"
    """`tiny`: a fresh character-level decoder, warm-started on demonstrations."""
    size: str = "0.2M"
    """Parameters of the tiny decoder: 0.12M | 0.2M | 0.4M | 1M."""
    sft: SFTSettings = SFTSettings()

    @field_validator("name")
    @classmethod
    def _only_tiny(cls, name: str) -> str:
        if name != "tiny":
            raise ValueError("only the tiny decoder exists; pass model.name=tiny")
        return name

    @field_validator("size")
    @classmethod
    def _known_size(cls, size: str) -> str:
        if size not in SIZES:
            raise ValueError(f"must be one of {', '.join(SIZES)}; pass model.size=0.2M")
        return size


class AlgoSettings(OpenSettings):
    """Which preset, on groups of how many samples; further keys are the preset's own."""

    preset: str
    num_generations: int = Field(8, ge=1)
    """Samples of each task; group baselines need at least 2."""
    learning_rate: float = Field(3e-4, gt=0)
    warmup_steps: int = Field(0, ge=0)
    """First steps of each network over which its learning rate rises linearly; Adam's first steps
    are its roughest."""
    max_grad_norm: float = Field(1.0, gt=0)
    truncation: Literal["none", "bootstrap", "mask", "penalty"] = "none"
    """An episode cut off by a limit that the task does not state: ends like any other, goes on by
    the critic's value, is not trained on, or costs `truncation_penalty`."""
    truncation_penalty: float = Field(1.0, gt=0)


class RolloutSettings(Settings):
    """How episodes are sampled."""

    engine: str = "transformers"
    temperature: float = Field(1.0, gt=0)
    max_turn_tokens: int = Field(8, ge=1)
    """Policy tokens of one turn, its stop token included."""
    max_episode_tokens: int = Field(2048, ge=2)
    """Tokens of a whole episode, prompt and observations included."""
    env_timeout_s: float = Field(20.0, gt=0)
    """Bound of one call into the environment."""
    max_turns: int | None = Field(None, ge=1)
    """Turns of one episode; null: no limit but the environment's own."""
    max_wall_s: float | None = Field(None, gt=0)
    """Seconds of one rollout, after which no turn begins; null: no limit."""
    max_error_share: float = Field(0.5, ge=0, le=1)
    """The run stops when a larger share of a rollout's episodes fails."""
    deterministic: bool = True
    """Lockstep by turn: what a row samples depends on its indices only."""

    @field_validator("engine")
    @classmethod
    def _only_transformers(cls, engine: str) -> str:
        if engine != "transformers":
            raise ValueError("must be transformers")
        return engine

    @field_validator("deterministic")
    @classmethod
    def _only_lockstep(cls, deterministic: bool) -> bool:
        if not deterministic:
            raise ValueError("only the lockstep mode exists; remove the key")
        return deterministic


class TrainSettings(Settings):
    """How long, from which seed, and what is kept."""

    tasks_per_step: int = Field(4, ge=1)
    steps: int = Field(100, ge=0)
    sampled_tokens: int | None = Field(None, ge=1)
    """Stop at the first step that reaches this many sampled policy tokens; null: `steps` alone."""
    micro_batch_size: int = Field(64, ge=1)
    """Rows of one forward and backward pass; changes memory, never the gradient."""
    eval_every: int = Field(20, ge=0)
    """Steps between evaluations; 0: before the first and after the last step alone."""
    eval_episodes: int = Field(128, ge=1)
    save_every: int = Field(50, ge=0)
    """Steps between checkpoints; 0: after the last step alone."""
    trajectories_every: int = Field(20, ge=0)
    """Steps between saved rollouts; 0: the last one alone."""
    seed: int = Field(0, ge=0)


class RunConfig(Settings):
    """One run, whole: what `stepcredit train` reads and what the run folder keeps."""

    env: EnvSettings
    model: ModelSettings = ModelSettings()
    algo: AlgoSettings
    rollout: RolloutSettings = RolloutSettings()
    train: TrainSettings = TrainSettings()
