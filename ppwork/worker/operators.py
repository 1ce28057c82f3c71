"""Intercepts torch's operators that talk to other ranks, even if DTensor, DDP or compiled code calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of torch's operators that talk to other ranks."""

Around = Callable[[Any, dict[str, Any], Callable[[], Any]], Any]
"""Gets the operator, its arguments by name, and a function that calls it; returns that function's result."""


def seeing(around: Around) -> TorchDispatchMode:
    """Return a context in which ``around`` makes each call of such an operator on this thread.

    It does not see operators that such an operator calls itself. It costs some 10 us for every operation of
    torch.
    """

    class Seeing(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True  # else nothing would be compiled in this context

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return False  # True imports the compiler, 800 modules and some seconds, at the first operation

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            if any(kind.__name__ == "DTensor" for kind in types):
                return NotImplemented  # it comes again, as the operators that it calls on this rank
            # Other subclasses are traced and not computed (FakeTensor), or were seen before.
            if types or func.namespace not in COLLECTIVES:
                return func(*args, **(kwargs or {}))
            named = dict(zip([a.name for a in func._schema.arguments], args, strict=False))
            return around(func, named, lambda: func(*args, **(kwargs or {})))

    return Seeing()  # type: ignore[no-untyped-call]
