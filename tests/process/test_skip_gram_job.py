"""Skip-gram on servers: the same script as on a laptop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).with_name("skip_gram_script.py")
TOPICS = [["cat", "dog", "cow", "pig"], ["car", "bus", "bike", "tram"], ["red", "blue", "pink"]]


def test_two_workers_learn_one_set_of_vectors_on_two_servers(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for part in range(2):
        lines = [" ".join(random.choice(TOPICS[i % 3], 6)) for i in range(400)]
        lines.append(f"rare together {'alone' * part}")  # "rare" occurs once in each worker's file
        (tmp_path / f"part-{part}").write_text("\n".join(lines))
        more = [" ".join(random.choice(["sun", "moon", "star"], 6)) for _ in range(200)]
        more.append(f"seldom {'alone' * part}")  # the second "alone" of all sentences
        (tmp_path / f"more-{part}").write_text("\n".join(more))
    command = ["-m", "sparsefleet", "launch", "--servers", "2", "--workers", "2"]
    command += ["--log-dir", str(tmp_path / "logs"), str(SCRIPT)]
    done = subprocess.run(
        [
            sys.executable,
            *command,
            str(tmp_path / "part-*"),
            str(tmp_path / "more-*"),
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*log*"))
    assert done.returncode == 0, done.stderr + logs
    first, second = (np.load(tmp_path / f"out.{worker}.npz") for worker in range(2))
    assert set(first["neighbors"]) == set(second["neighbors"]) == {"dog", "cow", "pig"}
    # Counts are added up over workers, so a word with one occurrence in each file is kept.
    assert {"rare", "together"} <= set(first["words"]) & set(second["words"])
    assert "alone" not in second["first_words"]
    # Later sentences add words; servers still know how often those dropped before occurred.
    assert set(first["new_neighbors"]) == set(second["new_neighbors"]) == {"moon", "star"}
    assert "alone" in second["words"]
    assert "alone" not in first["words"]
    assert "seldom" in first["words"]
    place = {word: number for number, word in enumerate(second["words"])}
    common = [word for word in first["words"] if word in place]
    ours = first["vectors"][[list(first["words"]).index(word) for word in common]]
    assert np.array_equal(ours, second["vectors"][[place[word] for word in common]])
