"""An engine in the gateway's process that describes itself with the process's environment."""

import json
import os

from openai_frontend.engines.engine import DeltaSink, Engine, ModelFacts, ModelSpec
from openai_frontend.generation import GenerationRequest

CONFIG = f"""
backend: "inprocess"
parameters {{ key: "engine" value: {{ string_value: "{__name__}:EnvironmentEngine" }} }}
"""


class EnvironmentEngine(Engine):
    def load(self, model: ModelSpec) -> ModelFacts:
        return ModelFacts(max_model_len=100, description=json.dumps(dict(os.environ)))

    def generate(self, request: GenerationRequest, sink: DeltaSink) -> None:
        raise AssertionError("the test sends no request")
