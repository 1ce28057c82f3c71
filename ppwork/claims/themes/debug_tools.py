"""Claims about what torch.distributed says by itself: logs, errors, breakpoints, servers, a group's state."""

from __future__ import annotations

from ppwork.claims.claim import (
    DOCS,
    NOTES,
    SEEN,
    Claim,
    ClaimFinding,
    Program,
    Seen,
    does_not_hold,
    holds,
    not_testable,
)

KINDS = ("info", "debug", "trace")
STACKS = {"TORCH_SHOW_CPP_STACKTRACES": "1"}
RAISES = {"no server": "DistNetworkError", "no key": "DistStoreError"}
RAISES |= {"no key in a HashStore": "DistStoreError", "empty queue": "DistStoreError"}


def _log_levels(seen: Seen) -> ClaimFinding:
    info, without = seen["at INFO"][0].notes, seen["without"][0].notes
    levels = {"OFF": "info", "INFO": "debug", "DETAIL": "trace"}
    text = "; ".join(
        f"{level}: " + ", ".join(f"{info[level][kind]} of {kind}" for kind in KINDS) for level in levels
    )
    quiet = not any(without[level][kind] for level in levels for kind in KINDS)
    text = (
        "Lines about one TCPStore, at TORCH_CPP_LOG_LEVEL=INFO and by TORCH_DISTRIBUTED_DEBUG, are, with "
        f"{text}. Without TORCH_CPP_LOG_LEVEL there {'is none' if quiet else 'are some'}, whatever the other."
    )
    most = {level: [kind for kind in KINDS if info[level][kind]][-1:] for level in levels}
    right = quiet and most == {level: [kind] for level, kind in levels.items()}
    return holds(text, when=right)


def _errors(seen: Seen) -> ClaimFinding:
    stores, backend = seen["stores"][0].notes, seen["backend"][1].notes
    as_said = [name for name, kind in RAISES.items() if kind in stores[name]]
    parts = [f"{name}: {_first(stores[name])}" for name in RAISES]
    parts += [f"{name} from a rank that is gone: {_first(backend[name])}" for name in ("recv", "barrier")]
    of_family = all("DistError" in backend[name] for name in ("recv", "barrier"))
    text = f"What was raised: {'; '.join(parts)}"
    if len(as_said) == len(RAISES) and of_family:
        return holds(f"{text}.")
    return does_not_hold(f"{text}." if of_family else f"{text}, which is no DistError.")


def _first(kinds: list[str]) -> str:
    return kinds[0] if kinds else "no error"


def _levels(seen: Seen) -> ClaimFinding:
    levels = seen["levels"][0].notes["levels"]
    text = "; ".join(f"{when}: {level}" for when, level in levels.items())
    as_said = list(levels.values()) == ["OFF", "INFO", "INFO", "DETAIL"]
    return holds(f"The level was, {text}.", when=as_said)


def _stack_traces(seen: Seen) -> ClaimFinding:
    with_it, without = seen["with it"][0].notes, seen["without"][0].notes
    text = (
        f"The error of a store without the key has {without['lines']} "
        f"line{'s' * (without['lines'] > 1)} without it, and with it {with_it['lines']}, "
        f"{with_it['frames']} of them naming functions of c10d."
    )
    return holds(text, when=with_it["lines"] > without["lines"])


def _breakpoint(seen: Seen) -> ClaimFinding:
    other, stopped = (rank.notes for rank in seen["at a terminal"])
    waited = other["returned"] >= stopped["continued"]
    text = "The debugger was on " + ("rank 1" if stopped.get("here") == 1 else "another rank than rank 1")
    text += f", and rank 0 {'waited' if waited else 'did not wait'} until it went on"
    blind = seen["without one"]
    ends = " and ".join(
        f"rank {number} {f'raised {rank.error_type}' if rank.error_type else rank.ended}"
        for number, rank in enumerate(blind)
    )
    bounds = blind[1].notes
    text += (
        f". Without a terminal {ends}. The group's timeout was {bounds['before_s']:g} s before, and is "
        f"{bounds['after_s']:g} s since."
    )
    return holds(text, when=stopped.get("here") == 1 and "here" not in other and waited)


def _server(seen: Seen) -> ClaimFinding:
    if not seen["documented"]:
        raise ValueError("nothing was seen")
    addresses = [address for rank in seen["documented"] for address in rank.notes["addresses"]]
    missing = next((rank.notes["missing"] for rank in seen["documented"] if rank.notes["missing"]), "")
    if not addresses:
        return not_testable(f"It did not start here: {missing}.")
    hosts = sorted({address.rpartition(":")[0] for address in addresses})
    unix = seen["on a unix socket"][0].notes
    text = f"The servers of two ranks listen on {' and '.join(hosts)}"
    text += f" (the page itself could not start: {missing})" if missing else ""
    text += f". A server on a unix socket listens on {len(unix['addresses'])} ports and "
    text += "answers with a stack" if unix["stack"] else "does not answer"
    everywhere = set(hosts) <= {"::", "0.0.0.0"}  # noqa: S104  what was seen
    return holds(f"{text}.", when=everywhere)


def _status(seen: Seen) -> ClaimFinding:
    notes = seen["peer gone"][1].notes
    if not notes["there"]:
        return does_not_hold("The group's backend has no `get_error` here.")
    text = f"It said {notes['before']} before and {notes['after']} after a receive that raised"
    return holds(f"{text}.", when=notes["before"] != notes["after"])


CLAIMS = (
    Claim(
        id="D10",
        statement="TORCH_DISTRIBUTED_DEBUG adds lines to the log only where TORCH_CPP_LOG_LEVEL is INFO.",
        source=f"{DOCS}, logging, matrix of levels",
        programs={
            "at INFO": Program(
                "debug_tools:logged_lines",
                ranks=1,
                timeout_s=0.0,
                environment={"TORCH_CPP_LOG_LEVEL": "INFO"},
                fresh=True,
            ),
            "without": Program("debug_tools:logged_lines", ranks=1, timeout_s=0.0),
        },
        judge=_log_levels,
        advice="Set both, before Python starts: torch reads TORCH_CPP_LOG_LEVEL once. Checks of shapes by "
        "DETAIL need only the other one.",
    ),
    Claim(
        id="D11",
        statement="What distributed components raise is a DistError: of the network, the store, or the "
        "backend.",
        source=f"{DOCS}, logging: custom exception types",
        backends=("gloo",),
        programs={
            "stores": Program("debug_tools:raised_by_stores", ranks=1, timeout_s=0.0),
            "backend": Program("debug_tools:raised_by_a_backend"),
        },
        judge=_errors,
        advice="Around messages and collectives on gloo catch RuntimeError and read its text; `except "
        "DistError` there catches nothing.",
    ),
    Claim(
        id="D12",
        statement="`breakpoint(rank)` stops one rank in the debugger and holds the others until it goes on.",
        source=f"{DOCS}, Python breakpoint",
        programs={
            "at a terminal": Program("debug_tools:stopped_by_a_breakpoint"),
            "without one": Program("debug_tools:breakpoint_without_a_terminal"),
        },
        judge=_breakpoint,
        advice="Only with a terminal, so not in a notebook and not under torchrun; and start anew after it, "
        "for every group keeps the hour of timeout that it sets.",
    ),
    Claim(
        id="D13",
        statement="The debug server listens on every address of the machine; it is for trusted networks.",
        source=f"{DOCS}, `torch.distributed.debug`, warning; {SEEN}",
        programs={
            "documented": Program("debug_tools:debug_server", timeout_s=0.0),
            "on a unix socket": Program("debug_tools:server_on_a_unix_socket", ranks=1, timeout_s=0.0),
        },
        judge=_server,
        advice="Do not start it on a shared machine: whoever reaches the port gets stacks and profiles. A "
        "rank's own part of it, on a unix socket in a folder of yours, gives the stacks too.",
    ),
    Claim(
        id="R04",
        statement="A group can be asked whether it has failed, by `get_error`.",
        source=f"{NOTES}, #144498: status of a process group",
        programs={"peer gone": Program("debug_tools:status_of_a_group")},
        judge=_status,
        advice="Do not ask the group. Keep the first error of any call yourself, and take the group for "
        "broken from then on.",
    ),
    Claim(
        id="D29",
        statement="The debug level of a process can be set by a call, or read again from the environment.",
        source=f"{DOCS}, TORCH_DISTRIBUTED_DEBUG: `set_debug_level`, `set_debug_level_from_env`, "
        "`get_debug_level`",
        programs={"levels": Program("debug_tools:levels_by_call", ranks=1, timeout_s=0.0)},
        judge=_levels,
        advice="A change of the environment in a running program does nothing by itself. Set the level "
        "before the groups are made that it is for: each keeps the one that it was made with.",
    ),
    Claim(
        id="D28",
        statement="With TORCH_SHOW_CPP_STACKTRACES=1 an error of torch's C++ carries the calls it came from.",
        source=f"{DOCS}, TORCH_DISTRIBUTED_DEBUG: TORCH_SHOW_CPP_STACKTRACES",
        programs={
            "with it": Program(
                "debug_tools:error_of_c_plus_plus",
                ranks=1,
                limit_s=60.0,
                timeout_s=0.0,
                environment=STACKS,
                fresh=True,
            ),
            "without": Program("debug_tools:error_of_c_plus_plus", ranks=1, timeout_s=0.0),
        },
        judge=_stack_traces,
        advice="Set it before Python starts, for the one run in which you want to know where an error is "
        "from: the texts become long, and a program that reads them has to expect that.",
    ),
)
