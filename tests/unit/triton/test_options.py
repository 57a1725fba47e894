from dataclasses import fields
from pathlib import Path

import pytest

from openai_frontend import errors
from openai_frontend.triton import Options, _core, library, options
from openai_frontend.triton.options import ModelLoadDeviceLimit, RateLimiterResource
from tests import mock_models
from tests.unit.engines import failing_engines
from tests.unit.triton.generation_inputs import count, generate

# A valid value of each option. A core without a GPU accepts and ignores those for GPUs.
SENSIBLE = {
    "library": None,  # the wheel's or the image's
    "server_id": "gateway",
    "model_control_mode": "explicit",
    "startup_models": ("mock",),
    "strict_model_config": True,
    "model_config_name": "small",
    "model_namespacing": True,
    "model_load_thread_count": 2,
    "model_load_retry_count": 1,
    "model_load_device_limits": (ModelLoadDeviceLimit(kind="gpu", device=0, fraction=0.5),),
    "repository_poll_s": 5.0,
    "backend_directory": Path("/opt/tritonserver/backends"),
    "backend_config": {"python": {"shm-default-byte-size": "1048576"}},
    "repo_agent_directory": Path("/opt/tritonserver/repoagents"),
    "host_policy": {"gpu_0": {"numa-node": "0"}},
    "rate_limiter_mode": "execution_count",
    "rate_limiter_resources": (RateLimiterResource(name="slots", count=4),),
    "pinned_memory_pool_bytes": 0,
    "cuda_memory_pool_bytes": {0: 0},
    "cuda_virtual_address_bytes": {0: 0},
    "min_supported_compute_capability": 6.0,
    "buffer_manager_thread_count": 1,
    "enable_peer_access": False,
    "cache_config": {"local": '{"size": 1048576}'},
    "cache_directory": Path("/opt/tritonserver/caches"),
    "exit_timeout_s": 3,
    "strict_readiness": False,
    "log_info": False,
    "log_warn": False,
    "log_error": False,
    "log_verbose": 0,
    "log_format": "ISO8601",
    "log_file": Path("/dev/null"),
    "metrics": True,
    "gpu_metrics": False,
    "cpu_metrics": False,
    "metrics_interval_ms": 500,
    "metrics_config": {"": {"summary_latencies": "true"}},
}
# With these a core does not start, or serves nothing, here: the caches above are of images, the
# in-process backend completes configs, and a namespace is part of each model's name.
LEFT_OUT = {"cache_config", "strict_model_config", "model_config_name", "model_namespacing"}


@pytest.fixture(autouse=True)
def log_as_before():
    """The logging options change the one logger of the process."""
    library.load(library.find())  # whichever test is the first
    yield
    made = _core.ServerOptions()
    made.log_file("")
    made.log_format(0)
    made.log_verbose(0)
    for switch in (made.log_warn, made.log_error):
        switch(True)


def test_table_is_complete():
    """The table above contains every option."""
    assert {field.name for field in fields(Options)} - {"model_repositories"} == SENSIBLE.keys()


@pytest.mark.parametrize("name", SENSIBLE)
def test_each_option_reaches_the_core(tmp_path, name):
    """The core accepts each option by itself."""
    chosen = Options(model_repositories=[tmp_path], **{name: SENSIBLE[name]})  # type: ignore[arg-type]

    assert isinstance(options.native(chosen, tmp_path), _core.ServerOptions)


async def test_core_with_all_options(repository, start_server):
    """A core starts and serves with all options that its installation supports."""
    mock_models.write(repository, "mock")
    chosen = {name: value for name, value in SENSIBLE.items() if name not in LEFT_OUT}
    server = await start_server(**chosen)

    assert (server.metadata()["name"], await count(generate(server, 2))) == ("gateway", 2)


async def test_model_config_name(repository, start_server):
    """The config with that name replaces config.pbtxt."""
    version = mock_models.write(repository, "mock", config="backend: 'absent'")
    configs = version.parent / "configs"
    configs.mkdir()
    (configs / "small.pbtxt").write_text(mock_models.CONFIG)
    server = await start_server(model_config_name="small")

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
    server = await start_server(log_file=log, log_info=True)
    await server.unload_model("mock")

    assert "successfully unloaded 'mock'" in log.read_text()


@pytest.mark.parametrize(("retries", "loads"), [(None, 1), (2, 3)])
async def test_load_retries(repository, start_server, retries, loads):
    """A failing model is loaded once, plus the retry count."""
    failing_engines.FailsInLoad.loads = 0
    mock_models.write(repository, "broken", config=failing_engines.config("FailsInLoad"))
    await start_server(model_load_retry_count=retries)

    assert failing_engines.FailsInLoad.loads == loads


BAD = {
    "model_control_mode": ("sometimes", KeyError),
    "log_format": ("xml", KeyError),
    "exit_timeout_s": (-1, TypeError),
    "metrics_interval_ms": (-1, TypeError),
    "log_verbose": ("loud", TypeError),
    "min_supported_compute_capability": ("high", TypeError),
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
