"""A trainer that takes milliseconds: the run-folder format with made-up curves.

Apart from the other fakes, so that a worker process imports nothing heavy.
"""

import json
import math
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS_PER_STEP = 256
SPEED = {
    ("outcome", "grpo"): 0.4,
    ("outcome", "ppo_step"): 0.25,
    ("dense@end", "grpo"): 1.2,
    ("dense@end", "ppo_step"): 1.3,
    ("dense", "grpo"): 1.3,
    ("dense", "ppo_step"): 1.9,
}


def run_one(
    config: dict[str, Any], folder: Path, on_step: Callable[[dict[str, Any]], None]
) -> None:
    """Write the curve 1 - exp(-speed * tokens) with noise from the seed.

    env.fail_seeds raises, env.die_seeds ends the process, env.sleep_s is slept in each step;
    env.gate holds the odd seeds back until a file of that name exists.
    """
    env, algo, train = config["env"], config["algo"], config["train"]
    if train["seed"] in env.get("fail_seeds", []):
        raise ValueError("door stuck; oil it")
    while train["seed"] % 2 and "gate" in env and not Path(env["gate"]).exists():
        time.sleep(0.01)
    folder.mkdir(parents=True, exist_ok=True)
    noise = random.Random(f"{train['seed']}")
    lift = noise.gauss(0, 0.03)
    own = random.Random(f"{train['seed']} {env} {algo}")
    speed = SPEED.get((env["reward"], algo["preset"]), 1.0) * 4 / env["turns"]
    speed *= 1 if algo["learning_rate"] < 5e-4 else 0.6
    with (folder / "metrics.jsonl").open("w") as file:
        step, tokens = 0, 0
        while True:
            if train["seed"] in env.get("die_seeds", []) and step == 2:
                os._exit(9)
            share = tokens / 2560
            success = 0.3 + 0.65 * (1 - math.exp(-2 * speed * share)) + lift * min(1, 4 * share)
            budget = train["sampled_tokens"]
            last = step >= train["steps"] or (budget is not None and tokens >= budget)
            row = {
                "step": step,
                "sampled_tokens": tokens,
                "wall_s": 0.01 * step,
                "cpu_s": 0.01 * step,
            }
            if step:
                row["success"] = row["outcome"] = success + own.gauss(0, 0.02)
                row["frac_reward_zero_std"] = 0.5
            if last or step == 0 or (train["eval_every"] and step % train["eval_every"] == 0):
                row["eval/success"] = row["eval/outcome"] = success + (
                    own.gauss(0, 0.01) if step else 0
                )
            file.write(json.dumps(row) + "\n")
            file.flush()
            on_step(row)
            if last:
                break
            time.sleep(env.get("sleep_s", 0))
            step, tokens = step + 1, tokens + TOKENS_PER_STEP
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "summary.json").write_text(json.dumps({"final": {"success": success}}))
