"""`waybill try`: one device of the user's own on the local stack, from its first message to a draft line."""
