"""The paper's evaluation on any candidate files: utility tables, trials, figures, tables and a report.

Data flows one way: `tables` (utilities of every hypothesis against R*) -> `trials` (the decoder's own race, replayed
over stored utilities) -> `studies` (rows of numbers) -> `figures`, `report`. `experiment.run` does all of this.
"""
