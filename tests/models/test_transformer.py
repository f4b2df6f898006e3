import json
from pathlib import Path

import pytest
import torch
import transformers
from packaging.version import Version

from fedsim.errors import ConfigError
from fedsim.models import transformer
from fedsim.tasks.base import state

BERT = {
    "model_type": "bert",
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}


def flat(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([value.flatten() for value in state(network).values()])


def test_build_is_seeded_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (
        transformer.build(BERT, "text-classification", seed) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(flat(first), flat(again))
    assert not torch.equal(flat(first), flat(other))
    assert not first.training


def test_attention_has_a_double_backward() -> None:
    network = transformer.build(BERT, "text-classification")
    assert network.config._attn_implementation == "eager"  # type: ignore[union-attr]


def test_pretrained_keeps_the_body_and_seeds_the_head(tmp_path: Path) -> None:
    body = transformer.build(BERT, "text-classification", 5).half()
    body.bert.save_pretrained(tmp_path)  # type: ignore[union-attr, operator]
    data = transformer.architecture(str(tmp_path), num_classes=3)
    first, again, other = (
        transformer.pretrained(str(tmp_path), data, "text-classification", seed)
        for seed in (1, 1, 2)
    )
    for name, value in state(first).items():
        assert value.dtype == torch.float32
        if name.startswith("classifier"):
            assert value.shape[0] == 3
        else:
            assert torch.equal(value, state(body)[name].float())
    assert torch.equal(flat(first), flat(again))
    assert not torch.equal(state(first)["classifier.weight"], state(other)["classifier.weight"])


def test_pretrained_refuses_a_body_that_lacks_a_tensor(tmp_path: Path) -> None:
    network = transformer.build(BERT, "text-classification").bert
    tensors = {k: v for k, v in network.state_dict().items() if "query" not in k}  # type: ignore[union-attr]
    network.save_pretrained(tmp_path, state_dict=tensors)  # type: ignore[union-attr, operator]
    with pytest.raises(ConfigError) as error:
        transformer.pretrained(str(tmp_path), BERT, "text-classification", 0)
    assert str(error.value) == (
        f"task.weights: {str(tmp_path)!r} has no fitting tensor for "
        "'bert.encoder.layer.0.attention.self.query.bias' (2 in all). "
        "Set weights = 'random', or name another model."
    )


def test_pretrained_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(ConfigError, match=r"has no usable safetensors weights \(.*safetensors.*\)"):
        transformer.pretrained(str(tmp_path), BERT, "text-classification", 0)


def test_model_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    with pytest.raises(ConfigError) as error:
        transformer.tokenizer(str(tmp_path))
    cause = "no vocabulary" if Version(transformers.__version__) >= Version("5") else "TypeError"
    assert str(error.value) == (
        f"task.model: {str(tmp_path)!r} has no usable tokenizer ({cause}). "
        "Put its tokenizer.json next to config.json."
    )


@pytest.mark.parametrize("content", ["", "[]", "{", '{"model_type": 3}'])
def test_folder_without_a_model_type(tmp_path: Path, content: str) -> None:
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError) as error:
        transformer.model_type(str(tmp_path))
    assert str(error.value) == (
        f"task.model: {str(tmp_path / 'config.json')!r} is missing or names no model_type. "
        "Name a folder as transformers' save_pretrained writes it."
    )


def test_misspelt_built_in_is_not_sought_on_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDSIM_HUB", raising=False)
    with pytest.raises(ConfigError) as error:
        transformer.model_type("tiny-bart")
    assert str(error.value) == ("task.model: 'tiny-bart' is not known. Did you mean 'tiny-bert'?")


def test_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.delenv("FEDSIM_HUB", raising=False)
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", refuse)
    with pytest.raises(ConfigError) as error:
        transformer.model_type("nobody/nothing")
    assert str(error.value) == (
        "task.model: 'nobody/nothing' is neither a built-in (lenet, lenet-group-norm, "
        "lenet-precode, resnet20, resnet20-group-norm, resnet20-norm-free, resnet18, "
        "resnet18-group-norm, mlp, vit, tiny-bert, tiny-gpt2, transformer3) nor a local "
        "folder, and it cannot be loaded from the hub (ConnectionError). Correct the name, or "
        "put the model under $FEDSIM_HUB/models."
    )
