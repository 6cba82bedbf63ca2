"""One small result JSON with a value in every member, for the tests that bend it."""

import json

from ckv_core.analysis.result_json import to_json
from tests.storage.whole_runs import big_events, folded


def small_run() -> dict:
    """Two variants, `full` first; 30 layers x 3 KV heads, 16 prompt tokens; through real JSON."""
    result = folded(big_events(tokens=16, variants=2))
    data = json.loads(json.dumps(to_json(result), allow_nan=False))
    data["variants"][0] |= {"method": "full", "retained": None}
    data["variants"][0]["perturbation"] = {
        "head_l1": None,
        "layer_hidden_l1": None,
        "final_hidden_l1": None,
    }
    data["variants"][1]["retained"][7][2] = [1, 5]
    data["memory"] = {"total": 5}
    data["floor"] = {"layer_hidden_l1": [0.5] * 30, "final_hidden_l1": 0.5, "kl": 0.25}
    data["variants"][1] |= {
        "held": {
            "entries": [9, 8],
            "cache_bytes": [90, 80],
            "evicted": [[1, 0, 0, 3], [1, 0, 2, 3]],
        },
        "answer_scores": {"token_f1": 0.5},
        "analysis": {
            "theta": [[1.0] * 9 for _ in range(30)],
            "head_alpha": [[0.25] * 3 for _ in range(30)],
            "hidden_l2": [2.0] * 30,
            "normed_l1": [3.0],
            "forced_kl": [0.1, None],
            "forced_top1": [1.0, 0.0],
        },
        "forced_steps": [{"reference": [[1, "a", 0.5]], "variant": []} for _ in range(2)],
        "follow_ups": [
            {
                "question": "And?",
                "text": "ab",
                "token_ids": [1, 2],
                "token_texts": ["a", "b"],
                "stopped": "eos",
            }
        ],
    }
    return data
