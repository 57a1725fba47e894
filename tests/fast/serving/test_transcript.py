"""The text of a transcription is the same however its windows' deltas arrive."""

import itertools
from typing import Any

import pytest

from openai_frontend.errors import InferenceFailed
from openai_frontend.generation import CompletionDelta
from openai_frontend.serving.output.transcript import (
    Segment,
    TextJoiner,
    Transcript,
    clock,
    separator,
    srt_block,
    vtt_block,
)

# A vocabulary: ids from 100 are times in steps of 0.02 s
WORDS = {1: " one", 2: " two", 3: " three"}


def spell(token_id: int) -> str:
    return f"<|{(token_id - 100) * 0.02:.2f}|>" if token_id >= 100 else WORDS[token_id]


def decode(ids: list[int]) -> str:
    return "".join(WORDS[each] for each in ids if each < 100)


def at(seconds: float) -> int:
    return 100 + round(seconds / 0.02)


def delta(*ids: int, ends: bool = False, logprob: float | None = None) -> CompletionDelta:
    made = CompletionDelta("".join(map(spell, ids)), ids, "stop" if ends else None)
    if logprob is not None:
        made.logprobs = [{each: {"logprob": logprob}} for each in ids]
    return made


@pytest.mark.parametrize("order", list(itertools.permutations([0, 0, 1, 1, 2], 5))[:60])
def test_windows_are_joined_in_order_whatever_arrives_first(order):
    texts = {0: iter([" one ", " two "]), 1: iter(["  ", "three"]), 2: iter([" four\n"])}
    left = {0: 2, 1: 2, 2: 1}
    joiner = TextJoiner(3, " ")
    pieces = []
    for window in order:
        left[window] -= 1
        pieces.append(joiner.feed(window, next(texts[window]), ended=not left[window])[0])
    assert "".join(pieces) == "one  two three four"


def test_empty_windows_leave_no_separator():
    joiner = TextJoiner(3, " ")
    added = [joiner.feed(each, text, ended=True)[0] for each, text in enumerate([" ", "a", ""])]
    assert added == ["", "a", ""]


def test_languages_without_spaces_are_joined_without():
    assert (separator("zh"), separator("ja"), separator("en"), separator(None)) == (
        "",
        "",
        " ",
        " ",
    )


def test_text_has_no_marks():
    transcript = Transcript([(0.0, 4.0)], " ")
    added, _ = transcript.feed(0, [delta(at(0), 1, at(0.5)), delta(at(1), 2, at(1.5), ends=True)])
    assert (added, transcript.text) == ("one two", "one two")


def segments(transcript: Transcript) -> list[Segment]:
    return [each for each in transcript.segments(spell, decode) if each is not None]


def segments_of(*windows: list[int], length: float = 4.0, **how: Any) -> list[Segment]:
    transcript = Transcript([(index * length, length) for index in range(len(windows))], " ")
    for index, ids in enumerate(windows):
        for each in ids:
            transcript.feed(index, [delta(each, **how)])
        transcript.feed(index, [CompletionDelta(finish_reason="stop")])
    transcript.check_finished()
    return segments(transcript)


def times(segments: list[Segment]) -> list[tuple[float, float, str]]:
    return [(round(each.start, 2), round(each.end, 2), each.text) for each in segments]


def test_times_of_later_windows_are_shifted():
    found = segments_of([at(0.2), 1, 2, at(1.0), at(1.5), 3, at(2.0)], [at(0.1), 3, at(0.9)])
    assert times(found) == [(0.2, 1.0, " one two"), (1.5, 2.0, " three"), (4.1, 4.9, " three")]
    assert [each.window_start for each in found] == [0, 0, 4]


def test_text_without_times_has_those_of_its_window():
    assert times(segments_of([1, 2])) == [(0.0, 4.0, " one two")]
    assert times(segments_of([at(0.5), 1], [])) == [(0.5, 4.0, " one")]


def test_times_never_leave_the_window_or_run_backwards():
    assert times(segments_of([at(1), 1, at(30)])) == [(1.0, 4.0, " one")]
    assert times(segments_of([at(2), 1, at(1)])) == [(2.0, 2.0, " one")]


def test_log_probability_of_a_segment_is_the_mean_of_its_words():
    transcript = Transcript([(0.0, 4.0)], " ")
    transcript.feed(0, [delta(at(0), logprob=-9), delta(1, logprob=-1), delta(2, logprob=-2)])
    transcript.feed(0, [delta(at(1), logprob=-9, ends=True)])
    (found,) = segments(transcript)
    assert found.avg_logprob == -1.5
    assert list(found.token_ids) == [1, 2]
    assert segments_of([at(0), 1, at(1)])[0].avg_logprob is None


def test_output_that_ends_early_is_a_failure():
    transcript = Transcript([(0.0, 4.0), (4.0, 4.0)], " ")
    transcript.feed(0, [delta(1, ends=True)])
    assert not transcript.finished
    with pytest.raises(InferenceFailed):
        transcript.check_finished()


def test_subtitles_have_numbers_times_and_one_line_each():
    (found,) = segments_of([at(0.5), 1, at(1)])
    assert srt_block(7, found) == "7\n00:00:00,500 --> 00:00:01,000\none\n\n"
    assert vtt_block(found) == "00:00:00.500 --> 00:00:01.000\none\n\n"


def test_text_cannot_forge_subtitles():
    """A line with an arrow would be times, an empty one the end."""
    evil = Segment(
        start=0, end=1, text="a\n\n2\n00:00:00,000 --> 1 <b>&", token_ids=(), avg_logprob=None,
        window_start=0, window=0,
    )  # fmt: skip
    assert srt_block(1, evil).count("-->") == 1
    assert srt_block(1, evil).count("\n\n") == 1
    assert vtt_block(evil).endswith("a 2 00:00:00,000 -&gt; 1 &lt;b&gt;&amp;\n\n")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "00:00:00.000"), (59.9996, "00:01:00.000"), (3661.25, "01:01:01.250")],
)
def test_clock_has_hours_and_milliseconds(seconds, written):
    assert clock(seconds, ".") == written
