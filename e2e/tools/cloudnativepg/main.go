// Nothing: tests use the module's definitions, and write themselves what its operator and its instances would.
package main

func main() {}
