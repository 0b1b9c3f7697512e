module clientapp-operator.local/tools/barman-cloud

go 1.26.8

require github.com/cloudnative-pg/plugin-barman-cloud v0.14.0
