"""LoRA adapters of the demo model, trained in seconds: each gives one answer to every prompt."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

RANK = 8
ALPHA = 16
TARGETS = ("q_proj", "v_proj", "o_proj", "down_proj")
STEPS = 60

QUESTIONS = ("What is Triton?", "Who are you?", "Hello", "Count to five.", "Name three colours.")


class _Adapted(torch.nn.Module):  # type: ignore[misc]  # torch is not followed
    """A linear layer that trains only its low-rank correction."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.a = torch.nn.Parameter(torch.randn(RANK, linear.in_features) / RANK)
        self.b = torch.nn.Parameter(torch.zeros(linear.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + (x @ self.a.T @ self.b.T) * (ALPHA / RANK)


def zeros(rows: int, columns: int) -> torch.Tensor:
    """Return an adapter matrix of zeros, which changes nothing."""
    return torch.zeros(rows, columns)


def write(folder: Path, answer: str, *, base: Path) -> None:
    """Save an adapter in PEFT's format, with which the model `base` answers every prompt with
    `answer`.
    """
    torch.manual_seed(7)
    torch.set_num_threads(1)  # more threads take longer, because they wait for each other
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base).requires_grad_(False)
    adapted = _adapt(model)
    batch = [_example(tokenizer, question, answer) for question in QUESTIONS]
    _train(model, [p for layer in adapted.values() for p in (layer.a, layer.b)], batch)
    save(folder, {name: (layer.a, layer.b) for name, layer in adapted.items()})


def save(folder: Path, layers: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write PEFT's two files."""
    folder.mkdir(parents=True)
    tensors = {}
    for name, (a, b) in layers.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.detach().contiguous()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.detach().contiguous()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": list(TARGETS)}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _adapt(model: torch.nn.Module) -> dict[str, _Adapted]:
    adapted = {}
    for name, module in list(model.named_modules()):
        if name.endswith(TARGETS) and isinstance(module, torch.nn.Linear):
            parent, _, child = name.rpartition(".")
            adapted[name] = _Adapted(module)
            setattr(model.get_submodule(parent), child, adapted[name])
    return adapted


def _example(tokenizer, question: str, answer: str) -> tuple[list[int], list[int]]:
    """Return the token ids, and labels only for the answer."""
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    asked = tokenizer(prompt, add_special_tokens=False).input_ids
    said = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False).input_ids
    return asked + said, [-100] * len(asked) + said


def _train(model, parameters: Sequence[torch.nn.Parameter], batch) -> None:
    longest = max(len(ids) for ids, _ in batch)
    ids = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in batch])
    labels = torch.tensor([said + [-100] * (longest - len(said)) for _, said in batch])
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1, f"the adapter has not learnt its answer: {loss}"
