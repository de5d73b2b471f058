"""Three generations of Granular, which stores one bag of records per column."""
