"""The gateway never unpickles a tensor from a client (CVE-2025-62164, CVE-2025-62372,
CVE-2025-24357): no field accepts one, and a field or part for one gets a 400.
"""

import base64
import json
import pickle

import pytest

from tests.security.guarded import CHAT, COMPLETIONS, EMBEDDINGS, check_refused


class Boom:
    """Ends the process if it is unpickled."""

    def __reduce__(self):
        return (exit, (66,))


PICKLED = base64.b64encode(pickle.dumps(Boom())).decode()
FIELDS = ["prompt_embeds", "mm_payload", "kv_transfer_params", "ec_transfer_params"]


@pytest.mark.parametrize(
    "value", [PICKLED, [PICKLED], [[0.5] * 8], {"data": PICKLED}], ids=range(4)
)
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_for_tensors_get_400(guarded, path, field, value):
    """The error names the field."""
    response = guarded.post(path, {field: value})

    check_refused(response, 400)
    assert json.loads(response.body)["error"]["param"] == field


PARTS = [
    {"type": "image_embeds", "image_embeds": PICKLED},
    {"type": "prompt_embeds", "prompt_embeds": PICKLED},
    {"type": "audio_embeds", "audio_embeds": {"data": PICKLED}},
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part["type"])
def test_content_parts_with_tensors_get_400(guarded, part):
    messages = [{"role": "user", "content": [part]}]

    check_refused(guarded.post(CHAT, {"messages": messages}))


def test_an_embeddings_request_takes_only_text_and_token_ids(guarded):
    for given in ([[0.5, 0.25]], {"tensor": PICKLED}, [{"prompt_embeds": PICKLED}]):
        check_refused(guarded.post(EMBEDDINGS, {"input": given}))


def test_the_sources_may_not_unpickle():
    """tests/security/test_no_code_execution.py checks the sources."""
    from tests.security import test_no_code_execution as sources

    assert {"pickle", "dill", "torch.load"} <= sources.BANNED.keys()
