"""The learned metrics of mbrace: `FOLDER` holds learned-en and learned-multilingual."""

from pathlib import Path

FOLDER = Path(__file__).parent
