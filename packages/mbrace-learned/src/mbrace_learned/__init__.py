"""The learned metrics of mbrace: `FOLDER` holds learned-en, learned-multilingual and learned-quality."""

from pathlib import Path

FOLDER = Path(__file__).parent
