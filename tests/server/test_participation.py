"""Which clients take part."""

from tests.apps.plain_app import start_arrays
from tests.server.cases import in_process, train


def test_participation_is_drawn_from_the_seed() -> None:
    half, strategy = train(in_process(), share=0.5)
    assert train(in_process(), share=0.5)[0] == half
    assert train(in_process(), share=0.5, seed=1)[0] != half
    size = sum(len(array.data) for array in start_arrays().values())
    assert strategy.bytes_up == dict.fromkeys((1, 2, 3), 2 * size)


def test_at_least_one_client_takes_part() -> None:
    _, strategy = train(in_process(), share=0.01)
    assert all(strategy.bytes_up.values())
