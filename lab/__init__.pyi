from .config import ModelConfig as ModelConfig
from .config import SampleConfig as SampleConfig
from .config import TrainConfig as TrainConfig
from .gates import HeadGates as HeadGates
from .model import HookedGPT as HookedGPT
from .tasks.registry import get_task as get_task
from .training import train as train
