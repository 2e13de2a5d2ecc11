"""Other trainers: the doctor beside a run of theirs. What an adapter needs of a trainer is imported when it is used."""
