// Nothing: tests use the module's definition, and write themselves what the plugin would.
package main

func main() {}
