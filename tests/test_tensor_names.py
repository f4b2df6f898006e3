"""Other applications' names lead to a network's own."""

from typing import Any

import pytest
import torch
from torch import nn

from fedsim.errors import ConfigError
from fedsim.tensor_names import named, own_tensors


class Tied(nn.Module):
    """Two layers, of which the second is tied, a batch norm and a buffer that is not sent."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.arange(3), persistent=False)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod."])
def test_names_of_wrappers_and_ties(prefix: str) -> None:
    network = Tied()
    given = {prefix + name: value for name, value in network.state_dict().items()}
    found = named({**given, f"{prefix}positions": torch.arange(3)}, network, "before")
    assert list(found.tensors) == list(own_tensors(network))
    assert "head.weight is tied to embed.weight" in found.how
    assert found.absent == ()
    assert ("change of prefix" in found.how) == bool(prefix)


def test_numbered_arrays_go_by_shape_and_order() -> None:
    network = Tied()
    arrays = [value.numpy() for value in network.state_dict().values()]
    found = named(arrays, network, "before")
    assert torch.equal(found.tensors["norm.weight"], network.norm.weight)
    assert "as state_dict() lists them" in found.how
    few = named([p.detach() for p in network.parameters()], network, "gradients")
    assert list(few.tensors) == [name for name, _ in network.named_parameters()]
    assert set(few.absent) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("count", [torch.tensor([3]), torch.tensor([])])
def test_counters_of_batches_may_have_an_axis_or_be_empty(
    count: torch.Tensor, listed: bool
) -> None:
    network = Tied()
    given = {**network.state_dict(), "norm.num_batches_tracked": count}
    found = named(list(given.values()) if listed else given, network, "after")
    assert torch.equal(found.tensors["norm.running_var"], network.state_dict()["norm.running_var"])
    if len(count):
        assert found.tensors["norm.num_batches_tracked"] == torch.tensor(3)
    else:
        assert found.absent == ("norm.num_batches_tracked",)


def test_a_head_that_is_tied_here_alone_is_refused() -> None:
    network = Tied()
    with pytest.raises(ConfigError, match="tie_word_embeddings = False"):
        named({**network.state_dict(), "head.weight": torch.zeros(4, 3)}, network, "before")


def test_adapters_of_peft() -> None:
    network = nn.Module()
    network.layer = nn.Module()
    network.layer.base_layer = nn.Linear(2, 3)
    network.layer.lora_A = nn.ModuleDict({"default": nn.Linear(2, 1, bias=False)})
    given = {"base_model.model.layer.lora_A.weight": torch.ones(1, 2)}
    found = named(given, network, "before")
    assert list(found.tensors) == ["layer.lora_A.default.weight"]
    assert set(found.absent) == {"layer.base_layer.weight", "layer.base_layer.bias"}
    base = named({"layer.weight": torch.ones(3, 2), "layer.bias": torch.ones(3)}, network, "base")
    assert set(base.tensors) == set(found.absent)


def test_arrays_without_names_may_leave_out_normalisation_or_a_head() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    weights = network.state_dict()
    arrays = list(weights.values())
    shared = ["0.weight", "0.bias", "2.weight", "2.bias"]
    found = named([weights[name] for name in shared], network, "after")
    assert list(found.tensors) == shared
    assert "without batch normalisation" in found.how
    body = named(arrays[:-2], network, "after", partial=True)
    assert set(body.absent) == {"2.weight", "2.bias"}
    more = named([*arrays, *arrays], network, "after", partial=True)
    assert not more.absent
    assert "the first 9 of 18 tensors" in more.how
    for given in (arrays[:-2], [*arrays, *arrays]):
        with pytest.raises(ConfigError, match="tensors came, and the model has 9"):
            named(given, network, "after")


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("layout", ["coo", "csr", "uncoalesced"])
@pytest.mark.parametrize("by_name", [True, False])
def test_sparse_gradients_are_read_as_dense_ones(layout: str, by_name: bool) -> None:
    network = nn.Sequential(nn.Embedding(6, 3, sparse=True), nn.Linear(3, 2))
    dense = [torch.zeros_like(value) for value in network.parameters()]
    dense[0][[1, 4]] = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    sparse = dense[0].to_sparse_csr() if layout == "csr" else dense[0].to_sparse()
    if layout == "uncoalesced":
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[4, 1, 4]]), torch.cat([dense[0][[4, 1]] - 1, torch.ones(1, 3)]), (6, 3)
        )
        dense[0][1] -= 1
    listed = [sparse, *dense[1:]]
    names = [name for name, _ in network.named_parameters()]
    given = dict(zip(names, listed, strict=True)) if by_name else listed
    read = named(given, network, "gradients").tensors
    assert all(torch.equal(read[name], value) for name, value in zip(names, dense, strict=True))


@pytest.mark.parametrize("form", [torch.as_tensor, lambda vector: vector.numpy()])
def test_a_single_vector_of_all_tensors_is_taken_apart(form: Any) -> None:
    network = nn.Linear(3, 2)
    vector = torch.arange(8.0)
    matched = named(form(vector), network, "gradients").tensors
    assert torch.equal(matched["weight"], vector[:6].view(2, 3))
    assert torch.equal(matched["bias"], vector[6:])


def test_complex_numbers_are_named() -> None:
    with pytest.raises(ConfigError, match="'weight' holds complex numbers"):
        named({"weight": torch.zeros(2, 3, dtype=torch.complex64)}, nn.Linear(3, 2), "gradients")
