"""Models: parameters add up to what the makers publish, to the last one."""

import pytest

from servefit.errors import ServefitError
from servefit.facts.models import all_models, find_model

PUBLISHED = {
    "smollm2-135m": 134_515_008, "smollm2-360m": 361_821_120, "smollm2-1.7b": 1_711_376_384, "smollm3-3b": 3_075_098_624,
    "llama-3.1-8b": 8_030_261_248, "llama-3.1-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-2-7b": 6_738_415_616, "tinyllama-1.1b": 1_100_048_384,
    "qwen2.5-0.5b": 494_032_768, "qwen2.5-7b": 7_615_616_512, "qwen2.5-72b": 72_706_203_648, "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360, "qwen3-30b-a3b": 30_532_122_624, "mistral-7b": 7_248_023_552, "mixtral-8x7b": 46_702_792_704,
    "phi-4": 14_659_507_200, "gemma-2-9b": 9_241_705_984, "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200, "gpt-oss-20b": 20_914_757_184, "granite-3.3-8b": 8_170_848_256,
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), PUBLISHED.items())
def test_parameters_add_up_to_the_published_total(name, total):
    """The shape, summed, is the count that the maker publishes: no matrix is forgotten or counted twice."""
    assert find_model(name).params_total == total


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-v3", 37),
        ("qwen3-30b-a3b", 3),
        ("gpt-oss-120b", 5.1),
        ("mixtral-8x7b", 12.9),
        ("nemotron-3-nano-30b-a3b", 3.2),
    ],
)
def test_active_parameters_are_near_the_published_ones(name, billions):
    """What one token passes is what the name of the model says, within 5 % (makers round, and count ends differently)."""
    assert find_model(name).params_active / 1e9 == pytest.approx(billions, rel=0.05)


def test_at_least_forty_models_each_with_a_source():
    """Forty or more, each with source, date and status."""
    models = all_models()
    assert len(models) >= 40
    assert all(m.source and m.date and m.status != "given" for m in models)
    assert len({m.name for m in models}) == len(models)


def test_flat_fields_are_those_of_the_longest_cache():
    """A hybrid's flat fields describe the layers that grow; `groups` holds all."""
    model = find_model("gpt-oss-20b")
    assert (model.layers, model.heads, model.kv_heads, model.head_dim, model.experts) == (24, 64, 8, 64, 32)
    assert model.attention.count("sliding") == model.attention.count("full") == 12
    assert find_model("qwen3.5-27b").attention.count("recurrent") == 48


@pytest.mark.parametrize("spelling", ["llama 3.1 8B", "meta-llama/Llama-3.1-8B-Instruct", "LLAMA-3.1-8B"])
def test_any_spelling_finds_it(spelling):
    """A title or a repository finds the model too."""
    assert find_model(spelling).name == "llama-3.1-8b"


def test_an_unknown_model_names_its_neighbours():
    """A misspelt name is not guessed."""
    with pytest.raises(ServefitError) as caught:
        find_model("llama-3.1-9b")
    assert "llama-3.1-8b" in caught.value.hint
