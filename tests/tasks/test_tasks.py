import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedsim.config.cell import TaskConfig, TaskKind
from fedsim.errors import ConfigError, StoreError
from fedsim.models import MODELS
from fedsim.seeds import seeded
from fedsim.tasks import TASKS, initial_weights, load_task, make_task, save_task, task_kind
from fedsim.tasks.base import Task, load_state, state
from fedsim.tasks.text import TextTask
from fedsim.types import Batch, Rows

TEXTS = Rows(
    ("The boat left at dawn.", "Timo owes us 30 crowns, and nobody asks.", "Rain."),
    torch.tensor([0, 1, 1]),
    (0, 1, 2),
    ("public", "private"),
)
OPT = {"hidden_size": 8, "word_embed_proj_dim": 8, "num_attention_heads": 2, "ffn_dim": 8}
IMAGES = Rows(
    torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)),
    torch.tensor([0, 4, 2]),
    (0, 1, 2),
)
TEXT_KINDS: list[tuple[str, TaskKind]] = [
    ("tiny-bert", "text-classification"),
    ("tiny-bert", "masked-language-modelling"),
    ("tiny-gpt2", "language-modelling"),
    ("tiny-gpt2", "text-classification"),
]


def config(model: str, **changes: object) -> TaskConfig:
    return TaskConfig.model_validate({"model": model, "dataset": "here", **changes})


def task_of(model: str, kind: str = "auto", **changes: object) -> Task:
    rows = TEXTS if model.startswith(("tiny", "transformer3")) else IMAGES
    return make_task(config(model, kind=kind, **changes), rows)


@pytest.mark.some(2)
@pytest.mark.parametrize("model", list(MODELS))
def test_every_built_in_makes_a_task_that_learns(model: str) -> None:
    task = task_of(model)
    rows = TEXTS if task.modality == "text" else IMAGES
    network = task.model(initial_weights(task, config(model), 0))
    batch = task.encode(rows)
    with seeded(1):
        gradient = task.gradient(network, batch)
    assert list(gradient) == [name for name, _ in network.named_parameters()]
    with seeded(1):  # PRECODE draws in each pass
        before = task.loss(network, batch).item()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.sub_(0.005 * gradient[name])
    with seeded(1):
        assert task.loss(network, batch).item() < before


def test_kinds() -> None:
    assert {model: task_kind(config(model)) for model in MODELS} == {
        "lenet": "image-classification",
        "lenet-group-norm": "image-classification",
        "lenet-precode": "image-classification",
        "resnet20": "image-classification",
        "mlp": "image-classification",
        "vit": "image-classification",
        "resnet20-group-norm": "image-classification",
        "resnet20-norm-free": "image-classification",
        "resnet18": "image-classification",
        "resnet18-group-norm": "image-classification",
        "tiny-bert": "text-classification",
        "tiny-gpt2": "language-modelling",
        "transformer3": "language-modelling",
    }
    assert set(TASKS) == {
        "image-classification",
        "text-classification",
        "language-modelling",
        "masked-language-modelling",
    }


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (
            "lenet",
            "language-modelling",
            "task.kind: 'lenet', a built-in image model, does not fit 'language-modelling'. "
            "Set 'image-classification', or choose another model.",
        ),
        (
            "tiny-bert",
            "language-modelling",
            "task.kind: 'tiny-bert', a bert model, does not fit 'language-modelling'. "
            "Set 'text-classification' or 'masked-language-modelling', or choose another model.",
        ),
        (
            "tiny-gpt2",
            "masked-language-modelling",
            "task.kind: 'tiny-gpt2', a gpt2 model, does not fit 'masked-language-modelling'. "
            "Set 'language-modelling' or 'text-classification', or choose another model.",
        ),
        (
            "tiny-gpt2",
            "image-classification",
            "task.kind: 'tiny-gpt2', a gpt2 model, does not fit 'image-classification'. Set "
            "'language-modelling' or 'text-classification', or choose another model.",
        ),
    ],
)
def test_kind_that_does_not_fit_the_model(model: str, kind: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        task_kind(config(model, kind=kind))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("model_type", "near"),
    [
        ("t5", "Supported are albert, bert, "),
        ("mamba", "Supported are albert, bert, "),
        ("my_own_module", "Supported are albert, bert, "),
        ("mixtral", "Near are mistral; "),
        ("phi3", "Near are phi; "),
    ],
)
def test_family_that_is_not_supported(tmp_path: Path, model_type: str, near: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    model = str(tmp_path)
    for kind in ("auto", "language-modelling"):
        with pytest.raises(ConfigError) as error:
            task_kind(config(model, kind=kind))
        message = str(error.value)
        assert message.startswith(
            f"task.model: {model!r} is of the type {model_type!r}, which is not supported. {near}"
        )
        assert message.endswith(
            "choose another model, or set task.unchecked = true and task.kind to try it."
        )
        assert "\n" not in message
    tried = config(model, kind="language-modelling", unchecked=True)
    assert task_kind(tried) == "language-modelling"
    with pytest.raises(ConfigError, match=r"^task.kind: is not known for .* Set 'text-class"):
        task_kind(config(model, unchecked=True))


def test_family_with_another_setting(tmp_path: Path) -> None:
    table = {"model_type": "opt", "do_layer_norm_before": False, **OPT}
    (tmp_path / "config.json").write_text(json.dumps(table))
    options = {"tokenizer": "tiny-gpt2", "weights": "random"}
    with pytest.raises(ConfigError) as error:
        make_task(config(str(tmp_path), **options), TEXTS)
    assert str(error.value) == (
        f"task.model: {str(tmp_path)!r} has do_layer_norm_before = False, and a model of the type "
        "'opt' is supported with True. Choose another model, or set task.unchecked = true to try "
        "it."
    )
    make_task(config(str(tmp_path), unchecked=True, **options), TEXTS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: make_task(config("lenet"), TEXTS),
            "task.model: 'lenet' takes images, but the data set holds texts. "
            "Choose a text model, or set task.input_column to a column of images.",
        ),
        (
            lambda: make_task(config("tiny-bert"), IMAGES),
            "task.model: 'tiny-bert' takes texts, but the data set holds images. "
            "Choose an image model, or set task.input_column to a column of texts.",
        ),
        (
            lambda: make_task(
                config("resnet20"), replace(IMAGES, inputs=torch.zeros(3, 1, 9, 3).byte())
            ),
            "task.dataset: its images are 9 x 3 pixels, but resnet20 needs 4 x 4. Choose larger "
            "images or another model.",
        ),
        (
            lambda: make_task(config("tiny-gpt2", max_length=129), TEXTS),
            "task.max_length: 'tiny-gpt2' takes at most 128 tokens, got 129. Set 128 or less.",
        ),
    ],
)
def test_rows_that_do_not_fit_the_model(make: Callable[[], Task], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == message


def test_tokenizer_larger_than_the_embedding(tmp_path: Path) -> None:
    from fedsim.models import TEXT_MODELS

    for path in TEXT_MODELS["tiny-bert"].iterdir():
        data = json.loads(path.read_text())
        if path.name == "config.json":
            data["vocab_size"] = 7
        (tmp_path / path.name).write_text(json.dumps(data))
    with pytest.raises(ConfigError) as error:
        make_task(config(str(tmp_path)), TEXTS)
    assert str(error.value) == (
        f"task.model: the tokenizer of {str(tmp_path)!r} has 1900 tokens, but its "
        "embedding has 7 rows. Use the tokenizer that the model was trained with."
    )


def test_images_are_bytes_over_255() -> None:
    batch = task_of("lenet").encode(IMAGES)
    assert batch.inputs.dtype == torch.float32
    assert isinstance(IMAGES.inputs, torch.Tensor)
    assert torch.equal((batch.inputs * 255).round().to(torch.uint8), IMAGES.inputs)
    assert batch.labels.tolist() == [0, 4, 2]
    assert batch.mask is None


@pytest.mark.parametrize(
    ("labels", "names", "classes"), [([0], (), 2), ([0, 4, 2], (), 5), ([1], ("a", "b", "c"), 3)]
)
def test_classes_are_those_named_or_seen(
    labels: list[int], names: tuple[str, ...], classes: int
) -> None:
    rows = replace(IMAGES.take(range(len(labels))), labels=torch.tensor(labels), class_names=names)
    assert make_task(config("lenet"), rows).spec.num_classes == classes


def test_bert_batch_is_cut_and_padded_to_the_longest() -> None:
    task = task_of("tiny-bert", max_length=7)
    batch = task.encode(TEXTS)
    assert batch.mask is not None
    assert batch.inputs.shape == (3, 7)
    assert batch.mask.sum(dim=1).tolist() == [7, 7, batch.mask[2].sum()]
    cls, sep = 2, 3
    for ids, mask in zip(batch.inputs, batch.mask, strict=True):
        real = ids[: mask.sum()]
        assert (real[0], real[-1]) == (cls, sep)
        assert ids[mask.sum() :].eq(0).all()


def test_language_model_sees_both_ends_and_predicts_no_padding() -> None:
    task = task_of("tiny-gpt2", max_length=9)
    batch = task.encode(TEXTS)
    assert batch.mask is not None
    lengths = batch.mask.sum(dim=1).tolist()
    assert max(lengths) == 9 == batch.inputs.shape[1]
    for ids, labels, length in zip(batch.inputs, batch.labels, lengths, strict=True):
        assert ids[0] == ids[length - 1] == 0
        assert torch.equal(labels[:length], ids[:length])
        assert labels[length:].eq(-100).all()


def test_examples_without_and_with_special_tokens() -> None:
    task = task_of("tiny-bert")
    found = task.examples(task.encode(TEXTS))
    assert found.words[2] == "rain."
    assert found.words_special[2] == "[CLS] rain. [SEP]"
    assert len(found.tokens[2]) == found.batch.mask[2].sum() - 2  # type: ignore[index]
    assert found.words[1] == "timo owes us 30 crowns, and nobody asks."
    gpt2 = task_of("tiny-gpt2")
    assert gpt2.examples(gpt2.encode(TEXTS)).words == TEXTS.inputs
    assert gpt2.examples(gpt2.encode(TEXTS)).words_special[2] == "<|endoftext|>Rain.<|endoftext|>"


def test_an_unknown_word_is_a_word_and_padding_is_none() -> None:
    task = task_of("tiny-bert")
    assert task.spec.special_ids == (0, 2, 3, 4)
    ids = torch.tensor([[2, 1, 0, 3, 0]])
    found = task.examples(Batch(ids, torch.tensor([0]), torch.tensor([[1, 1, 1, 1, 0]])))
    assert found.tokens == ((1,),)
    assert found.words_special == ("[CLS] [UNK] [PAD] [SEP]",)


@pytest.mark.parametrize(("model", "kind"), [("lenet", "auto"), ("mlp", "auto"), *TEXT_KINDS])
def test_saved_task_is_the_same_task(
    model: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_of(model, kind)
    save_task(task, tmp_path)
    monkeypatch.setattr("fedsim.models.transformer.locate", None)
    loaded = load_task(tmp_path)
    assert (type(loaded), loaded.spec) == (type(task), task.spec)
    rows = TEXTS if task.modality == "text" else IMAGES
    batch, again = task.encode(rows), loaded.encode(rows)
    assert torch.equal(batch.inputs, again.inputs)
    assert task.examples(batch).words_special == loaded.examples(again).words_special
    weights = initial_weights(task, config(model), 1)
    first, second = task.model(weights), loaded.model(weights)
    assert torch.equal(task.loss(first, batch), loaded.loss(second, again))


RESTORE = "Restore it, or capture again."


def test_task_with_a_broken_file(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"task\.json: the file is missing"):
        load_task(tmp_path)
    task = task_of("tiny-bert")
    save_task(task, tmp_path)
    path = tmp_path / "tokenizer" / "tokenizer.json"
    whole = path.read_bytes()
    for spoilt in (b"", whole[:-200], whole.replace(b'"vocab"', b'"vocac"', 1), whole + b" "):
        path.write_bytes(spoilt)
        with pytest.raises(StoreError) as error:
            load_task(tmp_path)
        assert str(error.value) == f"{path}: the file is cut or altered. {RESTORE}"
    path.unlink()
    with pytest.raises(StoreError, match=f"{path}: the file is missing. {RESTORE}"):
        load_task(tmp_path)
    (tmp_path / "tokenizer-hashes.json").unlink()  # as of older captures
    path.write_bytes(whole)
    assert load_task(tmp_path).spec == task.spec
    for spoilt in (b"", whole[:-200], whole.replace(b'"vocab"', b'"vocac"', 1)):
        path.write_bytes(spoilt)
        with pytest.raises(StoreError) as error:
            load_task(tmp_path)
        assert str(error.value) == f"{path}: is missing or holds no tokenizer. {RESTORE}"


def test_text_tasks_share_their_machinery() -> None:
    assert [name for name, cls in TASKS.items() if issubclass(cls, TextTask)] == [
        "text-classification",
        "language-modelling",
        "masked-language-modelling",
    ]


@pytest.mark.parametrize(("model", "kind"), TEXT_KINDS)
def test_a_blank_network_becomes_the_one_that_is_loaded(model: str, kind: TaskKind) -> None:
    task = task_of(model, kind)
    weights = initial_weights(task, config(model, kind=kind), 0)
    drawn, blank = task.build(), task.blank()
    load_state(drawn, weights)
    load_state(blank, weights)
    assert all(torch.equal(value, state(blank)[name]) for name, value in state(drawn).items())
    assert [(n, p.requires_grad) for n, p in drawn.named_parameters()] == [
        (n, p.requires_grad) for n, p in blank.named_parameters()
    ]
    one = next(iter(weights))
    partly = task.model({one: weights[one]})
    rest = {name: value for name, value in state(task.build()).items() if name != one}
    assert all(torch.equal(value, state(partly)[name]) for name, value in rest.items())
