"""A plan's options as a stage gets them: they note which names it asks for, which shows a typing error."""

# ruff: noqa: D102 (methods of a dict)

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import Any

import msgspec

from ppwork.plan import Plan


class AskedOptions(dict[str, Any]):
    """Options that note each name that was asked for, also one that is not there.

    Who goes through them all has asked for each.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401  JSON
        self.asked.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.asked.add(str(name))
        return super().__contains__(name)

    def get(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  JSON
        self.asked.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:  # noqa: ANN401  JSON
        self.asked.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:  # noqa: ANN401  JSON
        self.asked.add(name)
        return super().setdefault(name, default)

    def __iter__(self) -> Iterator[str]:  # because of it `**options` and `dict(options)` call `keys`
        return iter(self.keys())

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        self.asked.update(super().keys())
        return super().keys()

    def values(self) -> ValuesView[Any]:  # type: ignore[override]
        self.keys()
        return super().values()

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]
        self.keys()
        return super().items()

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {**self, **other}

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:  # type: ignore[override]
        return {**other, **self}

    def copy(self) -> dict[str, Any]:
        return {**self}

    def put_into(self, plan: Plan) -> Plan:
        """Return a copy of a plan that has these options."""
        plan = msgspec.structs.replace(plan)
        msgspec.structs.force_setattr(plan, "options", self)
        return plan
