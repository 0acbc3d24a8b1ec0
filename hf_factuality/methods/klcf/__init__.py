"""KLCF: recall and precision against a checklist of what the model knows (docs/checklists.md, docs/long-form.md)."""
