"""Order review in three lanes: a webhook of an order becomes fulfilment, a question to an analyst, or a hold."""
