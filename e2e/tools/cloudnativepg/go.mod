module clientapp-operator.local/tools/cloudnativepg

go 1.26.8

require github.com/cloudnative-pg/cloudnative-pg v1.30.0
