"""What a rank reads while it trains: batches from DALI pipelines, from memory or made up."""
