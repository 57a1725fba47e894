"""A classifier's labels as categories of moderation."""

import pytest

from openai_frontend.config.moderation_options import ModerationOptions
from openai_frontend.errors import ModelUnavailable
from openai_frontend.models.moderation import ModerationPolicy, highest, moderation_policy
from schemas.moderations import CATEGORIES

LABELS = ["fine", "rude", "mean", "brutal"]


def policy(**options: object) -> ModerationPolicy:
    mapping = {"rude": "harassment", "mean": "harassment", "brutal": "violence"}
    return moderation_policy(
        ModerationOptions.model_validate({"labels": mapping, **options}), LABELS
    )


def test_category_has_the_highest_score_of_its_labels():
    result = policy().result(policy().scores([0.1, 0.2, 0.6, 0.1]))

    assert list(result["categories"]) == list(result["category_scores"]) == list(CATEGORIES)
    assert result["flagged"] is True
    assert [name for name, flag in result["categories"].items() if flag] == ["harassment"]
    known = {name: score for name, score in result["category_scores"].items() if score}
    assert known == {"harassment": 0.6, "violence": 0.1}
    applied = {name for name, types in result["category_applied_input_types"].items() if types}
    assert applied == {"harassment", "violence"}


@pytest.mark.parametrize(
    ("options", "flagged"),
    [
        ({}, True),
        ({"threshold": 0.51}, False),
        ({"threshold": 0.9, "thresholds": {"violence": 0.5}}, True),
        ({"threshold": 0.0, "thresholds": {"violence": 1.0}}, True),  # harassment has 0
        ({"threshold": 1.0}, False),
    ],
)
def test_score_is_flagged_from_its_threshold(options, flagged):
    """The threshold itself is flagged, also where float32 is a little below it."""
    known = policy(**options)
    scores = known.scores([0.5, 0.0, 0.0, 0.5 - 1e-9])

    assert known.flags(scores) is known.result(scores)["flagged"] is flagged


def test_texts_of_one_input_have_their_highest_scores():
    assert highest([(0.1, 0.9), (0.4, 0.2)]) == (0.4, 0.9)


@pytest.mark.parametrize("labels", [None, [], ["fine"]])
def test_model_without_the_labels_is_refused_by_name(labels):
    options = ModerationOptions.model_validate({"labels": {"rude": "hate"}})

    with pytest.raises(ModelUnavailable) as refused:
        moderation_policy(options, labels)

    expected = "label 'rude'" if labels else "needs a classifier with labels"
    assert expected in refused.value.message


def test_error_names_the_closest_label():
    options = ModerationOptions.model_validate({"labels": {"rud": "hate"}})

    with pytest.raises(ModelUnavailable, match="did you mean 'rude'"):
        moderation_policy(options, LABELS)
