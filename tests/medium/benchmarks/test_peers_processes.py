from benchmarks.peers import processes
from benchmarks.peers.processes import ENGINE, FRONTEND, SUPERVISOR

ENGINE_CORE = {11: "VLLM::EngineCore"}
WORKER = {12: "VLLM::Worker"}
TRACKER = {13: "python -c from multiprocessing.resource_tracker import main"}


def test_python_server_is_the_frontend():
    """Its engine's processes are not, wherever they are in the tree."""

    root = {10: "python -m openai_frontend.cli serve --model-repository=/vllm-rs"}
    found = processes.roles(root | ENGINE_CORE | WORKER | TRACKER)

    assert found == {FRONTEND: [10, 13], ENGINE: [11, 12], SUPERVISOR: []}


def test_rust_frontend_has_a_supervisor():
    """The Python process that started it is not the frontend, although its command names it."""

    root = {10: "python vllm serve model"}
    rust = {14: "/somewhere/vllm-rs frontend --listen-fd 3"}

    found = processes.roles(root | ENGINE_CORE | rust | TRACKER)
    assert found == {FRONTEND: [14], ENGINE: [11], SUPERVISOR: [10, 13]}
