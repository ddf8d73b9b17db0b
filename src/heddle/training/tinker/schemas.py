"""The bodies of Tinker's protocol that are JSON (tinker 0.38); fields that are not known are refused."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, FiniteFloat, model_validator

from heddle.wire.lazy_model import LazyModel

Id = Annotated[str, Field(min_length=1, max_length=200)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}$")]
Seq = Annotated[int, Field(ge=0, lt=2**31)]
Metadata = dict[str, Any] | None
Ttl = Annotated[int, Field(ge=3600, le=315_360_000)] | None
MOST_CELLS = 1 << 20
Token = Annotated[int, Field(ge=0, lt=2**31)]


class Part(LazyModel):
    """An object within a request body."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Body(Part):
    """A request body."""

    type: str | None = None


class ClientConfig(Body):
    """What a client says before it begins."""

    sdk_version: str


class CreateSession(Body):
    """A client program."""

    tags: list[str] = Field(default=[])
    user_metadata: Metadata = None
    sdk_version: str
    project_id: Annotated[str, Field(max_length=300)] | None = None
    display_name: Annotated[str, Field(max_length=1000)] | None = None


class SessionId(Body):
    """A session."""

    session_id: Id


class FinishSession(Body):
    """The end of a client program."""

    reason: dict[str, Any]
    detail: str | None = None


class Owner(Part):
    """Whose sessions: the caller's own, everybody's, or those of named users."""

    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: list[str] = Field(default=[], max_length=10)


class Status(Part):
    """How a session is; none is ever cancelled or failed here, as only its client ends it."""

    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: list[Literal["success", "errored", "interrupted"]] | None = None


class Cursor(Part):
    """The last session of a page."""

    last_created_at: AwareDatetime
    last_session_id: str


class SearchSessions(Body):
    """Which sessions to list."""

    session_id: str | None = None
    project_ids: list[str] | None = None
    user_metadata: dict[str, str] = Field(default={})
    display_name: Annotated[str, Field(min_length=1)] | None = None
    owner: Owner = Field(default_factory=Owner)
    statuses: Annotated[list[Status], Field(min_length=1)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    cursor: Cursor | None = None


class LoraConfig(Part):
    """What of a model is trained."""

    rank: Annotated[int, Field(ge=1, le=1024)] = 32
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True


class OptimizerConfig(Part):
    """The optimizer of a model."""

    type: Literal["adamw"] = "adamw"


class CreateRun(SessionId):
    """A model to train."""

    model_seq_id: Seq
    base_model: str
    user_metadata: Metadata = None
    lora_config: LoraConfig = Field(default_factory=LoraConfig)
    optimizer_config: OptimizerConfig = Field(default_factory=OptimizerConfig)


class RunId(Body):
    """A model in training."""

    model_id: Id


class RunRequest(RunId):
    """One request among those of a model."""

    seq_id: Annotated[int, Field(ge=1, lt=2**31)]
    kind: ClassVar[str]


class AdamParams(Part):
    """Of one optimizer step; torch.optim.AdamW has the formula."""

    learning_rate: Annotated[FiniteFloat, Field(ge=0)] = 0.0001
    beta1: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[FiniteFloat, Field(ge=0, lt=1)] = 0.95
    eps: Annotated[FiniteFloat, Field(ge=0)] = 1e-12
    weight_decay: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    grad_clip_norm: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    """0: the gradient is not cut."""


class OptimStep(RunRequest):
    """One optimizer step along the gradient that has been gathered."""

    kind = "optim_step"
    adam_params: AdamParams


class SaveWeights(RunRequest):
    """Keep the weights and the optimizer under a name."""

    kind = "save_weights"
    path: Name
    ttl_seconds: Ttl = None
    overwrite: bool = False
    user_metadata: dict[str, str] | None = None


class SaveForSampler(RunRequest):
    """Keep the weights to sample from: under a name, or for one new sampler of the session."""

    kind = "save_weights_for_sampler"
    path: Name | None = None
    sampling_session_seq_id: Seq | None = None
    kind_of_sampler: Annotated[Literal["snapshot", "inflight"], Field(alias="kind")] = "snapshot"
    ttl_seconds: Ttl = None
    user_metadata: dict[str, str] | None = None


class SaveExternal(RunRequest):
    """Keep the weights as a PEFT folder whose files can be downloaded."""

    kind = "save_weights_external"
    path: Name
    ttl_seconds: Ttl = None
    age_encryption_recipients: None = None
    """Files are not encrypted here."""


class CopyWeights(Body):
    """Put a checkpoint into another project, or into a session."""

    session_id: Id | None = None
    model_seq_id: Seq | None = None
    destination_project_id: Annotated[str, Field(max_length=300)] | None = None
    source_path: str
    ttl_seconds: Ttl = None
    weights_access_token: str | None = None


class LoadWeights(Body):
    """Go on from a checkpoint: a model that is there, or a new one of a session."""

    kind: ClassVar[str] = "load_weights"
    model_id: Id | None = None
    seq_id: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    session_id: Id | None = None
    model_seq_id: Seq | None = None
    base_model: str | None = None
    user_metadata: Metadata = None
    path: str
    optimizer: bool
    optimizer_config: OptimizerConfig | None = None
    weights_access_token: str | None = None


class CreateSampler(SessionId):
    """What to sample from."""

    sampling_session_seq_id: Seq
    base_model: str | None = None
    model_path: str | None = None


class SamplerId(Body):
    """A sampler."""

    sampling_session_id: Id


class TextChunk(Part):
    """A part of a prompt."""

    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[Token]


class ModelInput(Part):
    """A prompt."""

    chunks: list[TextChunk]

    def ids(self) -> list[int]:
        """Its tokens."""
        return [token for chunk in self.chunks for token in chunk.tokens]


class Tensor(Part):
    """Token ids of a shape, or the cells of some of them by row (CSR)."""

    data: Annotated[list[int], Field(max_length=MOST_CELLS)]
    dtype: Literal["int64"]
    shape: Annotated[list[Annotated[int, Field(ge=0, le=MOST_CELLS)]], Field(min_length=2, max_length=2)]
    sparse_crow_indices: list[int] | None = None
    sparse_col_indices: list[int] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        crow, columns = self.sparse_crow_indices, self.sparse_col_indices
        rows, width = self.shape
        if crow is None or columns is None:
            is_sound = crow is columns and len(self.data) == rows * width
        else:
            is_sound = len(crow) == rows + 1 and crow[0] == 0 and crow[-1] == len(self.data) == len(columns)
            is_sound = is_sound and crow == sorted(crow) and all(0 <= column < width for column in columns)
        if not is_sound:
            raise ValueError("the data does not match the shape")
        if not any(one >= 0 for one in self.data) or min(self.data) < -1:
            raise ValueError("at least one cell must be a token (-1 means none)")
        return self

    def rows(self) -> list[list[int]]:
        """The tokens of each row."""
        count, width = self.shape
        ends = self.sparse_crow_indices or range(0, len(self.data) + 1, width)
        return [[one for one in self.data[ends[row] : ends[row + 1]] if one >= 0] for row in range(count)]


class SamplingParams(Part):
    """How tokens are drawn."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: str | list[str] | list[Token] | None = None
    """None: the end of the text; an empty list: nothing."""
    temperature: Annotated[FiniteFloat, Field(ge=0)] = 1.0
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] = -1
    top_p: Annotated[FiniteFloat, Field(gt=0, le=1)] = 1.0


class Sample(SamplerId):
    """Sequences to draw."""

    kind: ClassVar[str] = "sample"
    seq_id: Annotated[int, Field(ge=0, lt=2**62)]
    num_samples: Annotated[int, Field(ge=1, le=1024)] = 1
    prompt: ModelInput
    sampling_params: SamplingParams
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    topk_sample_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    prompt_logprobs_last_n: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    prompt_alt_tokens_k: Annotated[int, Field(ge=0, le=64)] = 0
    target_prompt_logprobs: Tensor | None = None
    record_stability_info: bool | None = None


class RetrieveFuture(Body):
    """The result of a request."""

    request_id: Id
    allow_metadata_only: bool = False


class TinkerPath(Body):
    """A checkpoint."""

    tinker_path: str


class ChangeTtl(Body):
    """How long a checkpoint is kept."""

    ttl_seconds: Ttl = None


class ChangeProject(Body):
    """Where a session belongs."""

    project_id: Annotated[str, Field(min_length=1, max_length=300)]
