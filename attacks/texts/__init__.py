"""The search of a text whose gradient matches: DLG, TAG and LAMP."""
