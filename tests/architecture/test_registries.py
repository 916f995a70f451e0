"""Every name that a person can type leads to something."""

import importlib
import pkgutil

import pytest

import lab
import probes
from lab.config import TrainConfig
from lab.presets import PRESETS, get_preset
from lab.tasks.base import Task
from lab.tasks.registry import TASKS, get_task
from probes.head_classes import CLASSES, HEAD_CLASSES, OTHER_LABELS, shown_label
from probes.planted import PlantedHead
from probes.registry import PROBES, get_probe, load_function, load_object


@pytest.mark.parametrize("package", [lab, probes], ids=lambda package: package.__name__)
def test_every_public_name_is_loaded_from_the_module_that_defines_it(package):
    assert package.__all__ == sorted(package.__all__)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert modules & set(package.__all__) == set()
    for name in package.__all__:
        value = getattr(package, name)
        assert value is getattr(importlib.import_module(value.__module__), name)
    assert dir(package) == package.__all__


@pytest.mark.parametrize("package", [lab, probes], ids=lambda package: package.__name__)
def test_a_name_that_does_not_exist_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"No {package.__name__} attribute x"):
        _ = package.x


@pytest.mark.parametrize("entries", [TASKS, PRESETS, PROBES], ids=["tasks", "presets", "probes"])
def test_names_are_unique_and_summaries_fit_a_line(entries):
    names = [entry.name for entry in entries]
    assert len(set(names)) == len(names)
    for entry in entries:
        assert 10 < len(entry.summary) < 100
        assert "\n" not in entry.summary


@pytest.mark.parametrize("name", [entry.name for entry in TASKS])
def test_task_resolves(name):
    task = get_task(name)
    assert isinstance(task, Task)
    assert task.name == name


@pytest.mark.parametrize("name", [entry.name for entry in PRESETS])
def test_preset_is_a_whole_config_of_a_known_task(name):
    config = get_preset(name)
    assert isinstance(config, TrainConfig)
    assert TrainConfig.from_dict(config.to_dict()) == config
    assert get_task(config.task).n_tokens - 1 <= config.model.n_ctx


@pytest.mark.parametrize("name", [entry.name for entry in PROBES])
def test_probe_resolves(name):
    assert get_probe(name).name == name
    assert callable(load_function(get_probe(name)))


@pytest.mark.parametrize("own", HEAD_CLASSES, ids=lambda own: own.name)
def test_head_class_is_a_probe_with_what_its_kind_needs(own):
    assert get_probe(own.name).needs_sources is (own.looks == "task")
    assert (own.step is not None) is (own.looks == "content")
    assert own.distance is None or own.looks == "place"
    assert not own.shape or callable(load_object(own.shape))
    assert len(own.short) <= 5


def test_labels_have_different_names_and_colours():
    entries = (*HEAD_CLASSES, *OTHER_LABELS)
    for what in ("name", "short", "colour"):
        assert len({getattr(entry, what) for entry in entries}) == len(entries)


@pytest.mark.parametrize("entry", PROBES, ids=lambda entry: entry.name)
def test_example_of_a_class_is_called_by_its_name(entry):
    if entry.name in CLASSES:
        head = PlantedHead(kind=entry.example.kind, distance=entry.example.distance)
        assert head.label == shown_label(entry.name, "reversal")
