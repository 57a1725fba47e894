"""The scores of a classifier's labels as those of OpenAI's categories of moderation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from openai_frontend.config.moderation_options import ModerationOptions
from openai_frontend.errors import ModelUnavailable, did_you_mean
from schemas.moderations import CATEGORIES

CategoryScores = tuple[float, ...]  # in the order of `ModerationPolicy.categories`


@dataclass(frozen=True, slots=True)
class ModerationCategory:
    """A category, the positions of its labels among the model's, and where it begins."""

    name: str
    labels: tuple[int, ...]
    threshold: float


@dataclass(frozen=True, slots=True)
class ModerationPolicy:
    """The operator's mapping for one classifier."""

    categories: tuple[ModerationCategory, ...]

    def scores(self, by_label: Sequence[float]) -> CategoryScores:
        """The highest score of each category's labels, rounded to the digits of a float32, so that
        a score is compared as it is shown.
        """
        return tuple(
            float(f"{max(by_label[at] for at in each.labels):.7g}") for each in self.categories
        )

    def flags(self, scores: CategoryScores) -> bool:
        """Whether a score reaches its threshold."""
        pairs = zip(self.categories, scores, strict=True)
        return any(score >= each.threshold for each, score in pairs)

    def result(self, scores: CategoryScores) -> dict[str, Any]:
        """The fields of ModerationResult."""
        known = dict(zip((each.name for each in self.categories), scores, strict=True))
        flagged = {
            each.name: score >= each.threshold
            for each, score in zip(self.categories, scores, strict=True)
        }
        return {
            "flagged": any(flagged.values()),
            "categories": {name: flagged.get(name, False) for name in CATEGORIES},
            "category_scores": {name: known.get(name, 0.0) for name in CATEGORIES},
            "category_applied_input_types": {
                name: ["text"] if name in known else [] for name in CATEGORIES
            },
        }


def highest(scores: Iterable[CategoryScores]) -> CategoryScores:
    """The scores of several texts as one."""
    return tuple(map(max, zip(*scores, strict=True)))


def moderation_policy(options: ModerationOptions, labels: Sequence[str] | None) -> ModerationPolicy:
    """Raises ModelUnavailable for a model without labels, or without one of those named."""
    if not labels:
        raise ModelUnavailable("its option `moderation` needs a classifier with labels")
    for label in options.labels:
        if label not in labels:
            raise ModelUnavailable(
                f"its option `moderation` names a label '{label}' that the model does not have"
                f"{did_you_mean(label, labels)}"
            )
    by_category: dict[str, list[int]] = {}
    for at, label in enumerate(labels):
        if (category := options.labels.get(label)) is not None:
            by_category.setdefault(category, []).append(at)
    return ModerationPolicy(
        tuple(
            ModerationCategory(
                name, tuple(by_category[name]), options.thresholds.get(name, options.threshold)
            )
            for name in CATEGORIES
            if name in by_category
        )
    )
