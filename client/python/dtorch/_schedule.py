"""The order of a pipeline's work: one forward, one backward (1F1B), as one list for the one thread that issues it.

Stages run beside each other, each in the order of what it was given. So the list does not say when something runs, only what
each stage does first; an operator that is issued early waits for its input on its own stage and for nothing else.
The schedule is PipeDream-Flush (Narayanan et al., Memory-Efficient Pipeline-Parallel DNN Training, 2021): stage s holds the
activations of at most `stages - s` micro-batches."""

from enum import Enum
from typing import NamedTuple

FORWARD_COST, BACKWARD_COST = 1, 2  # what a stage's forward and backward pass take, beside each other


class Kind(Enum):
    """What is done. Moves have a line of their own: a sender should not do anything else first."""

    FORWARD = "forward"            # a stage's part of the forward pass
    SEND = "send"                  # activations from this stage to the next one
    BACKWARD = "backward"          # a stage's part of the backward pass
    SEND_BACK = "send back"        # gradients from this stage to those before


class Action(NamedTuple):
    """One line of the order."""

    kind: Kind
    stage: int
    microbatch: int


def of_stage(stage: int, stages: int, microbatches: int) -> list[tuple[Kind, int]]:
    """What one stage does in its order: forward and backward passes with their micro-batches."""
    ahead = min(stages - stage, microbatches)
    order = [(Kind.FORWARD, m) for m in range(ahead)]
    for m in range(microbatches):
        order.append((Kind.BACKWARD, m))
        if m + ahead < microbatches:
            order.append((Kind.FORWARD, m + ahead))
    return order


def order(stages: int, microbatches: int) -> list[Action]:
    """The lines of all stages in one list, sorted by when they would begin if each forward pass took one unit of time, each
    backward pass two, and moves none. A move stands where what it moves is done: later lines do not delay it, and the receiver
    has nothing before it that could only be done after it."""
    todo = [of_stage(stage, stages, microbatches) for stage in range(stages)]
    free = [0] * stages                                   # when a stage has done what it was given
    ends: dict[tuple[Kind, int, int], int] = {}           # when a pass is done
    lines: list[tuple[int, int, int, Action]] = []        # time, moves before passes, the number of the line, what
    while any(todo):
        for stage in range(stages):
            while todo[stage]:
                kind, m = todo[stage][0]
                ready = _ready(kind, stage, m, stages, ends)
                if ready is None:
                    break
                todo[stage].pop(0)
                begin = max(free[stage], ready)
                free[stage] = begin + (FORWARD_COST if kind is Kind.FORWARD else BACKWARD_COST)
                ends[kind, stage, m] = free[stage]
                lines.append((begin, 1, len(lines), Action(kind, stage, m)))
                if kind is Kind.FORWARD and stage < stages - 1:
                    lines.append((free[stage], 0, len(lines), Action(Kind.SEND, stage, m)))
                if kind is Kind.BACKWARD and stage > 0:
                    lines.append((free[stage], 0, len(lines), Action(Kind.SEND_BACK, stage, m)))
    return [line[-1] for line in sorted(lines, key=lambda line: line[:3])]


def _ready(kind: Kind, stage: int, m: int, stages: int, ends: dict[tuple[Kind, int, int], int]) -> int | None:
    """When what a pass needs is there; None: that is not known yet."""
    if kind is Kind.FORWARD:
        return 0 if stage == 0 else ends.get((Kind.FORWARD, stage - 1, m))
    if stage == stages - 1:
        return ends.get((Kind.FORWARD, stage, m))
    return ends.get((Kind.BACKWARD, stage + 1, m))
