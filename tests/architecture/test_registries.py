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
from probes.registry import PROBES, get_probe, load_function


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
