"""Replicas that take turns: what that adds to a plan, in operations."""

from __future__ import annotations

from testbed.workload.operations import COMPUTE, Computing, Message, Pause
from testbed.workload.parallelism import PIPELINE
from testbed.workload.plan import Pattern, Relocation
from testbed.workload.plan_options import SendToken
from testbed.workload.send_tokens import TOKEN, find_turns, with_tokens

RATE = 1e9  # bytes per second
# ranks 0 and 1 are one replica, in two buildings, 2 and 3 the other
LINES = ((0, 1), (2, 3))
TOKENS = {
    pair: SendToken(("east", "west") if pair[0] % 2 == 0 else ("west", "east"), RATE)
    for pair in ((0, 1), (1, 0), (0, 3), (3, 0), (2, 1), (1, 2), (2, 3), (3, 2))
}


def forward(number: int, numel: int = 500) -> list[Computing | Message]:
    """Two operations of a first stage, from place 2 * number on."""
    return [
        Computing(f"0F{number}", COMPUTE, "forward", (), 1e-3),
        Message(f"0SEND_F{number}", "SEND_F 1", PIPELINE, (2 * number,), 1, numel, 2 * number, True),
    ]


def test_each_message_waits_for_a_token_and_passes_it_on() -> None:
    plain = Pattern((*forward(0), *forward(1)))
    first, second = (
        with_tokens(plain, Relocation((), line), tuple(find_turns(line[0], LINES, TOKENS, itemsize=4)))
        for line in LINES
    )
    names = [operation.name for operation in first.operations]
    turn = ["0F0", "0SEND_F0", "token of 0SEND_F0", "token 0"]
    assert names == [*turn, "0F1", "token 1", "0SEND_F1", "token of 0SEND_F1", "token 1"]
    assert [own.name for own in second.operations][1] == "token 0"  # it is the other one's turn at first
    waited, sent, pause, passed = first.operations[5:]
    assert sent.after == (4, 5)  # for what was computed, and the token
    assert isinstance(pause, Pause)
    assert pause.after == sent.after
    assert pause.duration_s == 500 * 4 / RATE
    assert passed.after == (7,)
    assert isinstance(waited, Message)
    assert isinstance(passed, Message)
    # the first one's message is the second one's turn afterwards, of which the last one goes to nobody
    assert (waited.peer, waited.sends, passed.peer, passed.sends) == (2, False, 2, True)
    assert sum(own.kind == TOKEN and isinstance(own, Message) and own.sends for own in second.operations) == 1
    assert sent.stream == "SEND_F 1"
    assert second.operations[2].stream == "SEND_F 3"  # it has moved to its own line
    ends = [
        {(own.tag, own.sends) for own in pattern.operations if isinstance(own, Message) and own.kind == TOKEN}
        for pattern in (first, second)
    ]
    assert ends[0] == {(tag, not sends) for tag, sends in ends[1]}


def test_who_sends_alone_takes_no_turns() -> None:
    assert list(find_turns(0, LINES[:1], TOKENS, itemsize=4)) == []
    apart = {pair: own for pair, own in TOKENS.items() if 2 not in pair and 3 not in pair}
    assert list(find_turns(0, LINES, apart, itemsize=4)) == []


def test_ranks_of_other_plans_take_their_turns_again() -> None:
    plain = Pattern(tuple(forward(0)))
    turns = tuple(find_turns(0, LINES, TOKENS, itemsize=4))
    assert with_tokens(plain, None, turns) is with_tokens(plain, None, turns)
    assert with_tokens(plain, None, turns[:0]) is not with_tokens(plain, None, turns)
