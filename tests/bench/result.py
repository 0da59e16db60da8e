"""What a benchmark found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Result:
    """One comparison. `ratio` is given where it is not simply ours / rival."""

    name: str
    ours: float
    rival: float
    rival_name: str
    unit: str
    goal: float | None = None
    ratio: float | None = None

    @property
    def better(self) -> float:
        """Ours against the rival such that more is better."""
        return self.ratio if self.ratio is not None else self.ours / self.rival

    @property
    def holds(self) -> bool | None:
        return None if self.goal is None else self.better >= self.goal

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"ratio": round(self.better, 4), "holds": self.holds}

    def as_text(self) -> str:
        goal = "" if self.goal is None else f"  goal {self.goal:g}: {'holds' if self.holds else 'MISSED'}"
        return (
            f"{self.name:<28} ours {self.ours:>12,.1f}  {self.rival_name} {self.rival:>12,.1f} {self.unit}"
            f"  ratio {self.better:.2f}{goal}"
        )


def paired(
    name: str, ours: list[float], rival: list[float], rival_name: str, unit: str, goal: float | None
) -> Result:
    """The result of rounds run in turn: medians, and the median of the ratios pair by pair."""
    ratios = [mine / other for mine, other in zip(ours, rival, strict=True)]
    return Result(name, median(ours), median(rival), rival_name, unit, goal, median(ratios))
