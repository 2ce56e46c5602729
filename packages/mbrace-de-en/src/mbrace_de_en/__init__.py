"""The German-English translator of mbrace: `FOLDER` holds its weights, its configuration and its vocabulary."""

from pathlib import Path

FOLDER = Path(__file__).parent
