"""The proof that the doctor works: illnesses planted in the real trainer are named, healthy runs are left alone."""
