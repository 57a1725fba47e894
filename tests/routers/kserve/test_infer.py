import pytest

pytestmark = pytest.mark.asyncio(loop_scope="package")


async def test_json(kserve):
    """A tensor of JSON comes back as JSON, under the request's id and the model's version."""
    sent = {"name": "IN", "shape": [3], "datatype": "FP32", "data": [1.5, -2, 0.25]}

    response = await kserve.infer("one", sent, id="mine", outputs=[{"name": "IN_echo"}])

    assert response.status_code == 200, response.text
    assert response.json() == {
        "id": "mine",
        "model_name": "one",
        "model_version": "1",
        "outputs": [{"name": "IN_echo", "datatype": "FP32", "shape": [3], "data": [1.5, -2, 0.25]}],
    }
