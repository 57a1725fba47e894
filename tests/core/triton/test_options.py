import re
from dataclasses import fields
from pathlib import Path

import pytest

from openai_frontend import errors
from openai_frontend.config.triton_options import TRITON_OPTIONS
from openai_frontend.triton import Options, _core, library, options
from tests import mock_models
from tests.core.engines import failing_engines
from tests.core.triton.generation_inputs import count, generate

# A valid value of each option. A core without a GPU accepts and ignores those for GPUs.
SENSIBLE = {
    "library": None,  # the wheel's or the image's
    "model_control_mode": "explicit",
    "startup_models": ("mock",),
    "repository_poll_s": 5.0,
    "backend_directory": Path("/opt/tritonserver/backends"),
    "backend_config": {"python": {"shm-default-byte-size": "1048576"}},
    "cache_config": {"local": '{"size": 1048576}'},
    "exit_timeout_s": 3,
    "strict_readiness": False,
    "metrics": True,
    "metrics_config": {"": {"summary_latencies": "true"}},
}
# A valid value of each option of `triton_option`
TEXTS = {
    "id": "gateway",
    "strict-model-config": "true",
    "model-config-name": "small",
    "model-namespacing": "true",
    "model-load-thread-count": "2",
    "model-load-retry-count": "1",
    "model-load-gpu-limit": "0:0.5",
    "repoagent-directory": "/opt/tritonserver/repoagents",
    "enable-peer-access": "false",
    "min-supported-compute-capability": "6.0",
    "host-policy": "gpu_0,numa-node=0",
    "pinned-memory-pool-byte-size": "0",
    "cuda-memory-pool-byte-size": "0:0",
    "cuda-virtual-address-size": "0:0",
    "buffer-manager-thread-count": "1",
    "rate-limit": "execution_count",
    "rate-limit-resource": "slots:4",
    "cache-directory": "/opt/tritonserver/caches",
    "log-info": "false",
    "log-warning": "false",
    "log-error": "false",
    "log-verbose": "0",
    "log-file": "/dev/null",
    "log-format": "ISO8601",
    "allow-gpu-metrics": "false",
    "allow-cpu-metrics": "false",
    "metrics-interval-ms": "500",
}
# With these a core does not start, or serves nothing, here: the caches above are of images, the
# in-process backend completes configs, and a namespace is part of each model's name.
LEFT_OUT = {"cache_config", "strict-model-config", "model-config-name", "model-namespacing"}


@pytest.fixture(autouse=True)
def log_as_before():
    """The logging options change the one logger of the process."""
    library.load(library.find())  # whichever test is the first
    yield
    made = _core.ServerOptions()
    made.log_file("")
    made.log_format(0)
    made.log_verbose(0)
    made.log_info(False)
    for switch in (made.log_warn, made.log_error):
        switch(True)


def test_table_is_complete():
    """The table above contains every option."""
    elsewhere = {"model_repositories", "triton_option"}
    assert {field.name for field in fields(Options)} - elsewhere == SENSIBLE.keys()
    assert TRITON_OPTIONS.keys() == TEXTS.keys()


@pytest.mark.parametrize("name", SENSIBLE)
def test_each_option_reaches_the_core(tmp_path, name):
    """The core accepts each option by itself."""
    chosen = Options(model_repositories=[tmp_path], **{name: SENSIBLE[name]})  # type: ignore[arg-type]

    assert isinstance(options.native(chosen, tmp_path), _core.ServerOptions)


@pytest.mark.parametrize("name", TEXTS)
def test_each_option_in_tritonservers_syntax_reaches_the_core(tmp_path, name):
    """The core accepts each option by itself."""
    chosen = Options(model_repositories=[tmp_path], triton_option={name: [TEXTS[name]]})

    assert isinstance(options.native(chosen, tmp_path), _core.ServerOptions)


async def test_core_with_all_options(repository, start_server):
    """A core starts and serves with all options that its installation supports."""
    mock_models.write(repository, "mock")
    chosen = {name: value for name, value in SENSIBLE.items() if name not in LEFT_OUT}
    texts = {name: [text] for name, text in TEXTS.items() if name not in LEFT_OUT}
    server = await start_server(**chosen, triton_option=texts)

    assert (server.metadata()["name"], await count(generate(server, 2))) == ("gateway", 2)


async def test_model_config_name(repository, start_server):
    """The config with that name replaces config.pbtxt."""
    version = mock_models.write(repository, "mock", config="backend: 'absent'")
    configs = version.parent / "configs"
    configs.mkdir()
    (configs / "small.pbtxt").write_text(mock_models.CONFIG)
    server = await start_server(triton_option={"model-config-name": ["small"]})

    assert server.model_is_ready("mock")


async def test_strict_readiness(repository, start_server):
    """Without strict readiness a server is ready even if a model is not."""
    mock_models.write(repository, "broken", fail_at_load="no weights")
    strict = await start_server()
    ready = strict.is_ready()
    await strict.stop()
    lenient = await start_server(strict_readiness=False)

    assert (ready, lenient.is_ready()) == (False, True)


async def test_log_file(repository, start_server, tmp_path):
    """The core logs to the configured file."""
    mock_models.write(repository, "mock")
    log = tmp_path / "core.log"
    server = await start_server(triton_option={"log-file": [str(log)], "log-info": ["true"]})
    await server.unload_model("mock")

    assert "successfully unloaded 'mock'" in log.read_text()


async def test_log_of_a_running_core(repository, start_server, tmp_path):
    """Its settings change at any time after the start."""
    mock_models.write(repository, "mock")
    log = tmp_path / "core.log"
    server = await start_server(triton_option={"log-file": [str(log)]})
    server.set_log("log_info", True)
    server.set_log("log_format", "ISO8601")
    await server.unload_model("mock")

    assert re.search(r"^20.*successfully unloaded 'mock'", log.read_text(), re.MULTILINE)


async def test_log_of_a_core_that_does_not_run(start_server):
    """The change would be lost in the start."""
    server = await start_server()
    await server.stop()

    with pytest.raises(errors.ModelUnavailable):
        server.set_log("log_info", True)


@pytest.mark.parametrize(("texts", "loads"), [({}, 1), ({"model-load-retry-count": ["2"]}, 3)])
async def test_load_retries(repository, start_server, texts, loads):
    """A failing model is loaded once, plus the retry count."""
    failing_engines.FailsInLoad.loads = 0
    mock_models.write(repository, "broken", config=failing_engines.config("FailsInLoad"))
    await start_server(triton_option=texts)

    assert failing_engines.FailsInLoad.loads == loads


BAD = {
    "model_control_mode": ("sometimes", KeyError),
    "exit_timeout_s": (-1, TypeError),
    "triton_option": ({"metrics-interval-ms": ["-1"]}, ValueError),
}


@pytest.mark.parametrize(("name", "value", "error"), [(n, *rest) for n, rest in BAD.items()])
def test_invalid_value(tmp_path, name, value, error):
    """An invalid value is rejected before the core starts."""
    chosen = Options(model_repositories=[tmp_path], **{name: value})

    with pytest.raises(error):
        options.native(chosen, tmp_path)


async def test_cache_that_is_not_installed(start_server):
    """The core does not start, and the error names the cache."""
    with pytest.raises(errors.GatewayError, match="absent"):
        await start_server(cache_config={"absent": "{}"})
