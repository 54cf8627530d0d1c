"""Settings of a cell on a made-up stack, for the fake engine."""

from pathlib import Path

from tfm_bench.config import cell_settings, load_config, read_yaml

ROOT = Path(__file__).parents[2]
PROMPTS = 3


def settings_for(stack_folder, *, split="test", repeat=0, prompts=PROMPTS):
    defaults = read_yaml(ROOT / "config" / "default.yaml")
    changed = {
        "stack": defaults["stack"] | {"path": str(stack_folder), "threads": 1},
        "prompts": {"dev": prompts, "test": prompts},
        "budgets": [8, 64],
        "max_new_tokens": 41,
    }
    config = load_config(defaults | changed)
    return cell_settings(config, split=split, dataset="math", temperature_hundredths=100, repeat=repeat)
