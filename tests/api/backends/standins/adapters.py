"""The LoRA cache of TensorRT-LLM's executor: the first request of a task brings the weights."""

from collections import OrderedDict

from tests.api.backends.standins.llama import Adapter, Array, Llama

# TensorRT-LLM's module numbers of a Llama
MODULES = {
    1: "self_attn.q_proj",
    2: "self_attn.k_proj",
    3: "self_attn.v_proj",
    4: "self_attn.o_proj",
    5: "mlp.gate_proj",
    6: "mlp.down_proj",
    7: "mlp.up_proj",
}


class Adapters:
    """The adapters of the latest tasks; the least recently used one is evicted."""

    def __init__(self, llama: Llama, capacity: int) -> None:
        self._llama = llama
        self._capacity = capacity
        self._cached: OrderedDict[int, Adapter] = OrderedDict()

    def adapter(self, task_id: int, weights: Array | None, config: Array | None) -> Adapter:
        """The task's adapter. Raises LookupError if it is unknown and sent without weights."""
        if weights is not None and config is not None:
            self._cached[task_id] = self._read(weights, config)
        elif task_id not in self._cached:
            raise LookupError(
                f"LoRA task {task_id} not found in cache. Please send LoRA weights with request"
            )
        self._cached.move_to_end(task_id)
        while len(self._cached) > self._capacity:
            self._cached.popitem(last=False)
        return self._cached[task_id]

    def _read(self, weights: Array, config: Array) -> Adapter:
        """Rows of A [rank, in] and then B [out, rank], flat; rows of module, layer, rank."""
        if len(weights) != len(config):
            raise ValueError("lora_weights and lora_config have not the same number of rows")
        return {
            (MODULES[module], layer): self._matrices(module, layer, rank, row.astype("float32"))
            for row, (module, layer, rank) in zip(weights, config.tolist(), strict=True)
        }

    def _matrices(self, module: int, layer: int, rank: int, row: Array) -> tuple[Array, Array]:
        name = f"model.layers.{layer}.{MODULES[module]}.weight"
        outer, inner = self._llama.weights[name].shape
        cut, end = rank * inner, rank * (inner + outer)
        return row[:cut].reshape(rank, inner), row[cut:end].reshape(outer, rank)
