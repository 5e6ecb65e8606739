"""The prompts of inference-perf's files: random ones, those with system prompts in common, and conversations.

Mirrors kubernetes-sigs/inference-perf, inference_perf/datagen (random_datagen.py, shared_prefix_datagen.py,
conversation_replay_datagen.py), apis/user_session.py and utils/numeric/distribution.py as of September 2026. Lengths are of the same
distributions, not from the same generator, and text has the tokens that were asked for, whatever a tokenizer makes of it. All answers
have their full length (`ignore_eos`).

The n-th request of a stage is of slot n % slots, and goes on with the slot's conversation. When that has had all its turns the slot begins it
again, so that the first prompt is found in caches, and what follows the first answer is not. Stages begin all conversations anew,
those of conversation_replay with another shared system prompt. Each slot belongs to one worker.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, model_validator

from sim.specs.strict_yaml import Finite, NotNegative, Strict
from sim.workload.columns import MAX_TOKENS, Floats, Ints
from sim.workload.prefixes import DEFAULT_HASH_BLOCK_SIZE, blocks
from sim.workload.trace import Segment

Path = tuple[Segment, ...]
Rng = np.random.Generator
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
MaybeTokens = Annotated[int, Field(ge=0, le=MAX_TOKENS)]

TURNS = 10
INPUT_TOKENS = 512
OUTPUT_TOKENS = 256  # these three where the file does not say
MAX_MODEL_LEN = 225_000
TOKEN_BUFFER = 200  # kept free of a prompt and its answer


class Distribution(Strict):
    """Clipped to its bounds, and rounded; a fixed one is its mean, whatever the bounds."""

    type: Literal["normal", "skew_normal", "lognormal", "uniform", "poisson", "fixed"] = "normal"
    min: MaybeTokens = 10
    max: MaybeTokens = 1024
    mean: Annotated[float, Field(ge=0, le=MAX_TOKENS, allow_inf_nan=False)] = 512.0
    std_dev: NotNegative | None = None
    variance: NotNegative | None = None
    skew: Finite = 0.0
    total_count: Any = None

    @model_validator(mode="after")
    def _check(self) -> "Distribution":
        if self.min > self.max:
            raise ValueError(f"must have its `min` at most its `max`, {self.max}")
        if self.variance is not None and self.std_dev:
            raise ValueError("must have either `std_dev` or `variance`")
        if self.type == "lognormal" and not self.mean:
            raise ValueError("must have a `mean` above 0, being lognormal")
        return self

    @property
    def most(self) -> int:
        """None is longer."""
        return int(self.mean) if self.type == "fixed" else self.max

    def drawn(self, count: int, rng: Rng) -> Ints:
        if self.type == "fixed":
            return np.full(count, int(self.mean))
        return np.rint(np.clip(self._values(count, rng), self.min, self.max)).astype(np.int64)

    def _values(self, count: int, rng: Rng) -> Floats:
        if self.variance is not None:
            std = float(np.sqrt(self.variance))
        else:
            std = 200.0 if self.std_dev is None else self.std_dev
        if not std or self.min == self.max:
            return np.full(count, self.mean)
        match self.type:
            case "normal":
                return rng.normal(self.mean, std, count)
            case "lognormal":
                variance = np.log1p((std / self.mean) ** 2)
                return rng.lognormal(np.log(self.mean) - variance / 2, np.sqrt(variance), count)
            case "uniform":
                return rng.uniform(self.min, self.max, count)
            case "poisson":
                return rng.poisson(self.mean or 1.0, count).astype(np.float64)
            case _:  # Azzalini's
                first, second = rng.standard_normal((2, count))
                delta = self.skew / np.sqrt(1 + self.skew**2)
                return np.asarray(self.mean + std * (delta * np.abs(first) + np.sqrt(1 - delta**2) * second))


class SharedPrefix(Strict):
    num_groups: Tokens
    num_prompts_per_group: Tokens
    system_prompt_len: MaybeTokens
    question_len: Tokens
    question_len_std: NotNegative = 0.0
    question_len_min: Tokens | None = None
    question_len_max: Tokens | None = None
    output_len: Tokens
    output_len_std: NotNegative = 0.0
    output_len_min: Tokens | None = None
    output_len_max: Tokens | None = None
    enable_multi_turn_chat: bool = False

    @property
    def num_prompts(self) -> int:
        return self.num_groups * self.num_prompts_per_group


class Conversations(Strict):
    seed: Any = None
    num_conversations: Tokens = 200
    shared_system_prompt_len: MaybeTokens = 8359
    dynamic_system_prompt_len: Distribution | None = None
    turns_per_conversation: Distribution | None = None
    input_tokens_per_turn: Distribution | None = None
    output_tokens_per_turn: Distribution | None = None
    tool_call_latency_sec: Distribution | None = None
    max_model_len: Tokens | None = None

    @property
    def most_tokens(self) -> int:
        return self.max_model_len or MAX_MODEL_LEN

    @model_validator(mode="after")
    def _check(self) -> "Conversations":
        longest = self.output_tokens_per_turn.most if self.output_tokens_per_turn else OUTPUT_TOKENS
        if longest + TOKEN_BUFFER >= self.most_tokens:
            raise ValueError(
                f"must have answers that leave room for a prompt in `max_model_len` {self.most_tokens:,}, of which {TOKEN_BUFFER} tokens are"
                f" kept free; they have up to {longest:,}"
            )
        return self


class SharedPrefixes(Strict):
    type: Literal["shared_prefix"]
    shared_prefix: SharedPrefix


class RandomPrompts(Strict):
    """Every prompt by itself."""

    type: Literal["random"]
    input_distribution: Distribution
    output_distribution: Distribution


class ConversationReplay(Strict):
    type: Literal["conversation_replay"]
    conversation_replay: Conversations


Data = SharedPrefixes | RandomPrompts | ConversationReplay
KINDS: dict[str, type[Data]] = {
    "shared_prefix": SharedPrefixes,
    "random": RandomPrompts,
    "conversation_replay": ConversationReplay,
}


class Prompts(NamedTuple):
    """One entry a request; None where a kind of data has no such thing. `slot` decides which worker sends it."""

    prompt_tokens: Ints
    output_tokens: Ints
    segments: Sequence[Path] | None = None
    session_id: tuple[str, ...] | None = None
    hold_s: Floats | None = None
    slot: Ints | None = None


def drawn_prompts(data: Data, counts: Sequence[int], rng: Rng) -> Prompts:
    """Those of all stages, which send so many requests each."""
    if isinstance(data, RandomPrompts):
        count = sum(counts)
        return Prompts(data.input_distribution.drawn(count, rng), data.output_distribution.drawn(count, rng))
    if isinstance(data, ConversationReplay):
        return _talked(data.conversation_replay, counts, rng)
    spec = data.shared_prefix
    return _chatted(spec, counts, rng) if spec.enable_multi_turn_chat else _shared(spec, counts, rng)


def num_slots(data: Data) -> int:
    """How many prompts or conversations are made."""
    if isinstance(data, ConversationReplay):
        return data.conversation_replay.num_conversations
    return data.shared_prefix.num_prompts if isinstance(data, SharedPrefixes) else 1


# -- prompts that are sent again and again ---------------------------------------------------------------------------------


class Questions(NamedTuple):
    """A slot each, shuffled."""

    group: Ints
    tokens: Ints
    output_tokens: Ints


def _questions(spec: SharedPrefix, rng: Rng) -> Questions:
    count = spec.num_prompts
    questions = _lengths(
        spec.question_len, spec.question_len_std, spec.question_len_min, spec.question_len_max, count, rng
    )
    outputs = _lengths(spec.output_len, spec.output_len_std, spec.output_len_min, spec.output_len_max, count, rng)
    order = rng.permutation(count)
    return Questions(order // spec.num_prompts_per_group, questions[order], outputs[order])


def _lengths(mean: float, std: float, low: int | None, high: int | None, count: int, rng: Rng) -> Ints:
    drawn = rng.normal(mean, std, count)
    return np.clip(np.rint(drawn), low or 1, high or MAX_TOKENS).astype(np.int64)


def _shared(spec: SharedPrefix, counts: Sequence[int], rng: Rng) -> Prompts:
    """Each group's system prompt before a question of its own; a question is as many blocks as a system prompt's length asks."""
    asked, size = _questions(spec, rng), spec.system_prompt_len
    block_size = size or int(asked.tokens.max())
    most_blocks = -(-int(asked.tokens.max()) // block_size)
    paths = []
    for slot, (group, tokens) in enumerate(zip(asked.group.tolist(), asked.tokens.tolist(), strict=True)):
        first = spec.num_groups + slot * most_blocks
        question = range(first, first + -(-tokens // block_size))
        paths.append(blocks([*([group] if size else []), *question], size + tokens, block_size))
    order = _slots(len(paths), counts)
    return Prompts(size + asked.tokens[order], asked.output_tokens[order], tuple(paths[row] for row in order.tolist()))


# -- conversations ---------------------------------------------------------------------------------------------------------


class Talk(NamedTuple):
    """What a slot says again and again: a system prompt that `shared` tokens of have contents in common with others' of one `group`,
    and turns that wait for a tool after their answers.
    """

    group: int
    shared_tokens: int
    system_tokens: int
    input_tokens: list[int]
    output_tokens: list[int]
    hold_s: list[float]


def _talked(spec: Conversations, counts: Sequence[int], rng: Rng) -> Prompts:
    number = spec.num_conversations
    turns = _drawn_or(spec.turns_per_conversation, TURNS, number, rng).clip(min=1)
    own = _drawn_or(spec.dynamic_system_prompt_len, 0, number, rng)
    lengths = [
        np.split(_drawn_or(given, default, int(turns.sum()), rng), np.cumsum(turns)[:-1])
        for given, default in (
            (spec.input_tokens_per_turn, INPUT_TOKENS),
            (spec.output_tokens_per_turn, OUTPUT_TOKENS),
            (spec.tool_call_latency_sec, 0),
        )
    ]
    shared = spec.shared_system_prompt_len
    talks = [
        Talk(
            0, shared, shared + int(own[slot]), said.clip(min=1).tolist(), answered.clip(min=1).tolist(), held.tolist()
        )
        for slot, (said, answered, held) in enumerate(zip(*lengths, strict=True))
    ]
    found = _replayed(talks, counts, spec.most_tokens)
    holds = None if spec.tool_call_latency_sec is None else found.hold_s
    return found._replace(hold_s=holds, slot=_slots(number, counts))


def _chatted(spec: SharedPrefix, counts: Sequence[int], rng: Rng) -> Prompts:
    """Every turn of a slot asks its question once more; conversations have no end but a stage's."""
    asked, most_turns = _questions(spec, rng), -(-max(counts) // spec.num_prompts)
    size = spec.system_prompt_len
    talks = [
        Talk(group, size, size, [tokens] * most_turns, [answer] * most_turns, [0.0] * most_turns)
        for group, tokens, answer in zip(*(column.tolist() for column in asked), strict=True)
    ]
    found = _replayed(talks, counts, MAX_TOKENS)
    return found._replace(hold_s=None, slot=_slots(spec.num_prompts, counts) % spec.num_groups)


def _drawn_or(given: Distribution | None, default: int, count: int, rng: Rng) -> Ints:
    return np.full(count, default) if given is None else given.drawn(count, rng)


def _slots(number: int, counts: Sequence[int]) -> Ints:
    return np.concatenate([np.arange(count) % number for count in counts])


class _Said:
    """A conversation so far: the tokens of the turns that are kept, and the blocks of the last prompt with its answer."""

    def __init__(self, name: str, begun: list[Segment], system_tokens: int) -> None:
        self.name = name
        self.begun = begun
        self.blocks = list(begun)
        self.system_tokens = system_tokens
        self.turns: list[int] = []

    def prompt_tokens(self, new: int, most: int) -> int:
        """With what is new; the oldest turns go where that is more than `most`, and then what is behind in the system prompt."""
        total = self.system_tokens + sum(self.turns) + new
        if total > most:
            while self.turns and total > most:
                total -= self.turns.pop(0)
            if total > most:
                self.system_tokens = max(0, most - new)
                total = min(self.system_tokens + new, most)
            self.blocks = self.begun[: self.system_tokens // DEFAULT_HASH_BLOCK_SIZE]
        return total


class _Contents:
    """Ids of blocks: of what all slots of a stage and group begin with, of what each time that a slot begins anew has in common, and new ones."""

    def __init__(self) -> None:
        self._next = 0
        self._begun: dict[tuple[int, ...], list[Segment]] = {}

    def begun(self, key: tuple[int, ...], blocks_before: list[Segment], num_blocks: int) -> list[Segment]:
        """The whole blocks with which a prompt of that key begins."""
        if key not in self._begun:
            self._begun[key] = [*blocks_before[:num_blocks], *self.fresh(num_blocks - len(blocks_before))]
        return self._begun[key]

    def fresh(self, num_blocks: int) -> Iterator[Segment]:
        for _ in range(num_blocks):
            yield self._next, DEFAULT_HASH_BLOCK_SIZE
            self._next += 1


def _replayed(talks: Sequence[Talk], counts: Sequence[int], max_model_len: int) -> Prompts:
    """Request after request, each the next turn of its slot."""
    size, contents = DEFAULT_HASH_BLOCK_SIZE, _Contents()
    prompt_tokens, output_tokens, hold_s, names = [], [], [], []
    paths: list[Path] = []
    for stage, count in enumerate(counts):
        said: dict[int, _Said] = {}
        for number in range(count):
            round_, slot = divmod(number, len(talks))
            talk = talks[slot]
            again, turn = divmod(round_, len(talk.input_tokens))
            if not turn:
                shared = contents.begun((stage, talk.group), [], talk.shared_tokens // size)
                first_prompt = talk.system_tokens + talk.input_tokens[0]
                begun = contents.begun((stage, talk.group, slot), shared, first_prompt // size)
                said[slot] = _Said(f"{stage}-{slot}-{again}", begun, talk.system_tokens)
            new, answer, now = talk.input_tokens[turn], talk.output_tokens[turn], said[slot]
            tokens = now.prompt_tokens(new, max(1, max_model_len - answer - TOKEN_BUFFER))
            num_blocks = -(-tokens // size)
            now.blocks.extend(contents.fresh(num_blocks - len(now.blocks)))
            last = (now.blocks[num_blocks - 1][0], tokens - (num_blocks - 1) * size)
            paths.append((*now.blocks[: num_blocks - 1], last))
            now.turns.append(new + answer)
            prompt_tokens.append(tokens)
            output_tokens.append(answer)
            hold_s.append(float(talk.hold_s[turn]))
            names.append(now.name)
    return Prompts(np.array(prompt_tokens), np.array(output_tokens), paths, tuple(names), np.array(hold_s))
