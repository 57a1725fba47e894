"""No tensor of a client's is ever unpacked (CVE-2025-62164, CVE-2025-62372, CVE-2025-24357): there
is no field for one, and what looks like one is a 400.
"""

import base64
import json
import pickle

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, EMBEDDINGS, check_refused


class Boom:
    """Unpickled it would end the process."""

    def __reduce__(self):
        return (exit, (66,))


PICKLED = base64.b64encode(pickle.dumps(Boom())).decode()
FIELDS = ["prompt_embeds", "mm_payload", "kv_transfer_params", "ec_transfer_params"]


@pytest.mark.parametrize(
    "value", [PICKLED, [PICKLED], [[0.5] * 8], {"data": PICKLED}], ids=range(4)
)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_field(guarded, path, field, value):
    """The field is refused by name."""
    response = guarded.post(path, {field: value})

    check_refused(response, 400)
    assert json.loads(response.body)["error"]["param"] == field


PARTS = [
    {"type": "image_embeds", "image_embeds": PICKLED},
    {"type": "prompt_embeds", "prompt_embeds": PICKLED},
    {"type": "audio_embeds", "audio_embeds": {"data": PICKLED}},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
def test_part(guarded, part):
    """Nor is there one among the parts of a message."""
    messages = [{"role": "user", "content": [part]}]

    check_refused(guarded.post(CHAT, {"messages": messages}))


def test_other_addresses(guarded):
    """An embeddings request takes text and token ids, nothing else."""
    for given in ([[0.5, 0.25]], {"tensor": PICKLED}, [{"prompt_embeds": PICKLED}]):
        check_refused(guarded.post(EMBEDDINGS, {"input": given}))


def test_no_code_unpacks_one():
    """tests/security/test_no_code_execution.py holds the sources to it."""
    from tests.security import test_no_code_execution as sources

    assert {"pickle", "dill", "torch.load"} <= sources.BANNED.keys()
