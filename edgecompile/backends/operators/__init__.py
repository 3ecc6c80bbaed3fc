"""The operators that lowering emits: schema, CPU reference and packed weights of each."""
