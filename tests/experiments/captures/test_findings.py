"""Findings that are no sentence or picture: words, classes and counts, each beside its null."""

import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

import fedsim
from experiments.analysis.evidence import Grade, Kind, Word
from experiments.captures.disclosures import Disclosure, Words, disclosed
from experiments.captures.evidence import Fit
from experiments.captures.findings import Findings, WordFit
from experiments.captures.page import LEVELS
from experiments.wording.catalogue import say, sentence, sentences
from fedsim.knowledge import FACTS
from fedsim.models import TEXT_MODELS, transformer
from fedsim.store.capture import CaptureKey
from tests.experiments.captures.conftest import Held
from tests.experiments.captures.conftest import loss as image_loss
from tests.experiments.conftest import Said

TEXTS = {
    1: ("the nurse was kind and explained every step.", "my knee hurts again."),
    2: ("a visitor lost two kilograms in a month.", "the doctor forgot the form on monday."),
    3: ("we sail past the lighthouse at dawn.", "ropes and canvas hold against storms."),
}
MODEL = str(TEXT_MODELS["tiny-bert"])


def trained(client: int, optimizer: Callable[[Any], Any], covered: float = 0.0) -> Any:
    """The update of a client that takes a step on all its texts, and the distinct tokens."""
    tokenizer = transformer.tokenizer(MODEL)
    architecture = transformer.architecture(MODEL, 2)
    network: Any = transformer.build(architecture, "text-classification", seed=1)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    batch = tokenizer(list(TEXTS[client]), return_tensors="pt", padding=True)
    step = optimizer(network.parameters())
    network(**batch, labels=torch.tensor([0, 1])).loss.backward()
    step.step()
    torch.manual_seed(client)
    after = {
        name: value + covered * torch.randn_like(value) if value.is_floating_point() else value
        for name, value in network.state_dict().items()
    }
    return network, tokenizer, before, after, {*batch["input_ids"].flatten().tolist()}


def given(client: int, optimizer: Any, covered: float = 0.0) -> tuple[Disclosure, set[int]]:
    network, tokenizer, before, after, ids = trained(client, optimizer, covered)
    update = fedsim.Update.of(
        network, before=before, after=after, tokenizer=tokenizer, task="classification"
    )
    disclosure = disclosed(update).model_copy(update={"key": CaptureKey(round=1, client=client)})
    return disclosure, ids - {*update.task.spec.special_ids}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=5e-5)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-4)


@pytest.mark.some(4)
@pytest.mark.parametrize("optimizer", [sgd, adamw, momentum])
@pytest.mark.parametrize("client", [1, 2, 3])
def test_the_words_that_moved_are_those_of_the_texts(client: int, optimizer: Any) -> None:
    disclosure, ids = given(client, optimizer)
    assert disclosure.words is not None
    assert {*disclosure.words.ids} == ids
    assert disclosure.words.complete
    assert disclosure.words.marks >= 2


def test_the_null_fails_where_clients_are_shuffled() -> None:
    found = Findings([given(client, adamw)[0] for client in TEXTS])
    for mine in found.given:
        assert mine.words
        right = found.fit(mine.key, mine.words.ids)
        assert right
        assert (right.moved, right.borne_out) == (right.words, True)
        for other in found.given:
            if other is not mine and other.words:
                wrong = Findings([mine, other]).fit(mine.key, other.words.ids)
                assert wrong
                assert not wrong.borne_out
                assert wrong.moved < wrong.words / 2


def test_noise_hides_the_words_and_the_page_does_not_claim_them() -> None:
    disclosure, _ = given(1, sgd, covered=0.1)
    assert (disclosure.words is None) or not disclosure.words.complete
    (row, *_) = Findings([disclosure]).rows()
    assert (row.what, row.source) in {("words", "not known"), ("words", "read")}
    strong, _ = given(1, sgd, covered=10.0)
    assert strong.words is None
    assert strong.no_words


def test_frozen_embeddings_tell_no_words() -> None:
    def head(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[-2:], lr=0.1)

    disclosure, _ = given(1, head)
    assert disclosure.words is None
    assert not Findings([disclosure]).worded


def words(count: int, first: int = 0, *, complete: bool = True) -> Words:
    ids = tuple(range(first, first + count))
    return Words(ids=ids, texts=tuple(map(str, ids)), marks=2, complete=complete)


def disclosure(client: int, **fields: Any) -> Disclosure:
    table: dict[str, Any] = {
        "key": CaptureKey(round=1, client=client),
        "match": "by name",
        "claimed": None,
        "labels": {},
        "no_labels": "noise hides the counts",
        "batches": None,
        "layers": 0,
        "known": (),
    }
    return Disclosure(**{**table, **fields})


def test_equal_sets_are_not_shown_to_be_the_clients_own() -> None:
    found = Findings([disclosure(client, words=words(7)) for client in (1, 2)])
    assert found.worded == []
    assert [shown.word for shown, _ in found.sentences(())] == ["not decided"] * 2


def test_the_sentence_leads_with_all_words_and_says_what_is_shared() -> None:
    found = Findings([disclosure(1, words=words(30)), disclosure(2, words=words(32, 25))])
    (shown, first), (_, second) = found.sentences(())
    assert (shown.word, shown.grade) == ("leaks", "words")
    assert (first.reason, first.facts["count"], second.facts["count"]) == ("words.all", 30, 32)
    assert first.facts["shared"] == say("words.shared", shared=5)
    assert first.facts["beyond"] == say("words.unseen")
    # A certified text shows its sentence.
    (_, proven), _ = found.sentences({CaptureKey(round=1, client=1)})
    assert not proven.facts["beyond"]


@pytest.mark.parametrize("complete", [True, False])
def test_many_captures_have_one_sentence(complete: bool) -> None:
    given = [
        disclosure(i, words=words(10 + i, 10 * i, complete=complete or i == 0)) for i in range(6)
    ]
    ((shown, said),) = Findings(given).sentences(())
    assert (shown.word, shown.grade) == ("leaks", "words")
    assert said.reason == "words.several"
    names = ("updates", "captures", "least", "most", "complete")
    assert [said.facts[name] for name in names] == [6, 6, 10, 15, 6 if complete else 1]


@pytest.mark.parametrize(
    ("fields", "what", "source", "value"),
    [
        ({"words": words(3)}, "words", "read", "3 words"),
        ({"words": words(3, complete=False)}, "words", "read", "3 words"),
        ({"no_words": "frozen"}, "words", "not known", "frozen"),
        ({"labels": {"a": 2, "b": 1}, "no_labels": ""}, "classes", "read", "a: 2, b: 1"),
        ({}, "classes", "not known", "noise hides the counts"),
        ({"claimed": 9}, "examples", "stated", "9"),
        ({"batches": 4}, "batches", "read", "4"),
        ({"layers": 1}, "statistics", "read", "mean and variance of 1 layer"),
        ({"layers": 3}, "statistics", "read", "mean and variance of 3 layers"),
    ],
)
def test_each_finding_has_a_row_of_its_own(
    fields: dict[str, Any], what: str, source: str, value: str
) -> None:
    rows = {row.what: row for row in Findings([disclosure(1, **fields)]).rows()}
    assert (rows[what].source, rows[what].null) == (source, "")
    assert rows[what].value.startswith(value)


@pytest.mark.parametrize(
    ("mine", "others", "null"),
    [
        ({"labels": {"a": 2, "b": 2}}, {"labels": {"a": 4}}, "50 % alike"),
        ({"labels": {"a": 1}}, {"labels": {"b": 1}}, "0 % alike"),
        ({"labels": {"a": 3}}, {"labels": {"a": 1}}, "100 % alike"),
        ({"words": words(4)}, {"words": words(4, 2)}, "2 of them"),
        ({"words": words(4)}, {"words": words(4, 9)}, "0 of them"),
        ({"words": words(4)}, {}, ""),
    ],
)
def test_the_null_is_the_same_of_another_client(
    mine: dict[str, Any], others: dict[str, Any], null: str
) -> None:
    found = Findings([disclosure(1, **mine), disclosure(2, **others)])
    what = next(iter(mine)).replace("labels", "classes")
    row = next(row for row in found.rows() if (row.key.client, row.what) == (1, what))
    assert row.null == null


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"words": words(3)}, "words of client 1"),
        ({"labels": {"a": 1}}, "each class"),
        ({"layers": 2}, "mean and variance"),
        ({}, ""),
    ],
)
def test_what_is_not_decided_says_what_is_known(fields: dict[str, Any], fact: str) -> None:
    known = Findings([disclosure(1, **fields)]).known()
    assert fact in str(known)
    assert (known == "") == (not fact)


def test_words_of_a_guess_weigh_more_than_its_cosine() -> None:
    assert WordFit(30, 30, 5).borne_out
    assert not WordFit(30, 5, 30).borne_out
    assert WordFit(30, 30, None).borne_out
    assert not WordFit(30, 6, 5).borne_out  # a word more is no evidence


@pytest.mark.parametrize("others", [2, 5])
def test_a_guess_leads_by_the_spread_of_the_null(others: int) -> None:
    assert Fit(0.98, (0.1, 0.12)).leads is True
    assert Fit(0.1, (0.98,)).leads is False
    assert Fit(0.98, (0.1,)).leads is Fit(0.98, ()).leads is None  # no spread is known
    cosines = np.random.default_rng(others).normal(0.02, 0.01, (2000, others + 1))
    leading = sum(bool(Fit(own, tuple(null)).leads) for own, *null in cosines.tolist())
    assert 0.015 <= leading / 2000 <= 0.035  # .025


def test_the_officers_folder(tmp_path: Path, said: Said, held: Held) -> None:
    """Words lead the first screen, and no set of words is judged by one sentence's cosine."""
    folder = tmp_path / "updates"
    (folder / "round-1").mkdir(parents=True)
    for client in (1, 2):
        network, tokenizer, before, after, _ = trained(client, adamw)
        torch.save(before, folder / "round-1" / "before.pt")
        torch.save(after, folder / "round-1" / f"site-{client}.pt")
    model = tmp_path / "model"
    network.save_pretrained(model)
    tokenizer.save_pretrained(model)
    (folder / "updates.toml").write_text(f'model = "{model}"\n')
    code, text, _ = said("attack", folder, "--attacks", "embedding_rows", "--budget", "20")
    assert code == 0
    assert sentence("guess.words_borne_out") in text
    page = (folder / "captures" / "run" / "report" / "index.html").read_text("utf-8")
    page = unescape(page)
    assert sentence("guess.not_borne_out") not in page
    answers = re.findall(r'<li class="([\w-]+)">(<span class="grade">words</span>)?', page)
    assert [shade for shade, _ in answers] == ["words", "words", "not-decided"]
    assert [bool(grade) for _, grade in answers] == [True, True, False]
    assert sentence("advice.words") in page


def test_every_sentence_is_used_and_takes_its_facts() -> None:
    root = Path(__file__).parents[3] / "experiments"
    files = [*root.rglob("*.py"), *root.rglob("*.j2")]
    code = "".join(path.read_text("utf-8") for path in files)
    verdicts = {*get_args(Word), *(f"leaks.{grade}" for grade in get_args(Grade))}
    typed = {
        "decide": get_args(Kind),
        "why": get_args(Kind),
        "verdict": {*verdicts, "no leak found.idle"},
        "rows": verdicts,
        "level": LEVELS,
        "fact": FACTS,
        "flow": ("fedsgd", "fedavg"),
        "privacy": ("example", "update"),
        "risk": verdicts,
    }
    for reason, text in sentences().items():
        section, _, kind = reason.partition(".")
        by_kind = kind in typed.get(section, ()) or kind.partition(".")[0] in typed.get(section, ())
        assert by_kind or section == "short" or f'"{reason}"' in code, reason
        assert text == text.strip() or reason.endswith(
            ("shared", "ahead", "blind", "few", "known", "unseen")
        )
    with pytest.raises(KeyError):
        sentence("words.all")


def test_tensors_of_a_tied_head_do_not_count_as_words(held: Held) -> None:
    update = fedsim.Update.of(
        held.model, gradients=held.gradients, tokenizer=held.tokenizer, num_examples=1
    )
    found = disclosed(update)
    if found.words is not None:
        ids = held.tokenizer("The code of the door is 4471.")["input_ids"]
        assert {*found.words.ids} <= {*ids}
        assert not found.words.complete


def steps_of(optimizer: Any, client: int) -> Disclosure:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    before = {name: value.clone() for name, value in net.state_dict().items()}
    torch.manual_seed(client)
    step = optimizer(net.parameters())
    for _ in range(5):
        step.zero_grad()
        value = torch.nn.functional.cross_entropy(net(torch.randn(32, 64)), torch.arange(32) % 4)
        value.backward()
        step.step()
    update = fedsim.Update.of(
        net, before=before, after=dict(net.state_dict()), loss=image_loss, image_shape=(1, 8, 8)
    )
    return disclosed(update).model_copy(update={"key": CaptureKey(round=1, client=client)})


@pytest.mark.parametrize(
    ("optimizer", "signs"),
    [
        (lambda p: torch.optim.Adam(p, lr=1e-3), True),
        (adamw, True),
        (lambda p: torch.optim.SGD(p, lr=0.1), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), False),
    ],
)
def test_steps_of_adam_are_told_from_plain_ones(optimizer: Any, signs: bool) -> None:
    given = [steps_of(optimizer, client) for client in (1, 2, 3)]
    found = Findings(given)
    assert found.signs == signs
    assert any(offer.reason == "advice.signs" for offer in found.offers()) == signs
    known = [each.model_copy(update={"known": ("optimizer",)}) for each in given]
    assert not Findings(known).signs


def test_what_clients_state_is_offered_as_an_option() -> None:
    metrics = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epsilon": 3.9, "loss": 0.4}
    others = {**metrics, "noise_multiplier": 1.5}
    found = Findings([disclosure(1, stated=metrics), disclosure(2, stated=others)])
    for offer, client, noise in zip(found.offers(), (1, 2), ("1", "1.5"), strict=True):
        stated, options = offer.facts["stated"], str(offer.facts["options"])
        assert stated == f"noise_multiplier = {noise}, max_grad_norm = 1, epsilon = 3.9"
        assert f'"dp_sgd", clip = 1.0, noise_multiplier = {float(noise)}' in options
        assert options.endswith(f"--clients {client}")
    assert list(Findings([disclosure(1, stated={"loss": 0.4})]).offers()) == []


def test_the_offered_option_is_one_that_the_command_takes() -> None:
    from experiments.captures.facts import facts_of
    from experiments.plan.overrides import override
    from server.stated_facts import offered

    (option,) = offered({"noise_multiplier": 1.0, "max_grad_norm": 2.0})
    facts = override({}, [option.removeprefix("--knows '").rstrip("'")])
    network = torch.nn.Linear(4, 2)
    task = fedsim.Update.of(
        network,
        gradients=[torch.ones(2, 4), torch.ones(2)],
        loss=image_loss,
        input_shape=(4,),
    ).task
    (known,) = facts_of(task, facts).defense or ()
    assert known == {"name": "dp_sgd", "clip": 2.0, "noise_multiplier": 1.0}
